"""The tests mirror the packages; `contract` and `distributed` test all of them."""
