{% include "surface.js" %}{% include "page.js" %}
