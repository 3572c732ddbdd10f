"""`dlctl dashboard`: a page in the browser that shows trainings, served from this machine only.

Imports `dlctl.live`, `dlctl.service` and `dlctl.series`, and starlette and uvicorn, which nothing
else in dlctl loads. The server knows trainings through a `LiveFeed` alone. What passes through is
JSON, never HTML: a name or a line of a training is text for the page.
`static/` holds the page: JavaScript modules without a build step, and uPlot in `static/vendor/`.
"""
