"""One offline html file for what `examine` or any other verb has measured.

`page` is the verb. `draw` chooses a picture by what made a result, from the `drawings` there are;
`sections` say what the numbers of each part mean; `templates` is how it looks.
"""
