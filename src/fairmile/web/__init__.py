"""The web window: REST under `/api` and pages, on the same Python API as the command line.

How to add a route. Write `web/api/<noun>.py` and add its module to `MODULES` in `web/table.py`:

    routes = Routes("runs")                                    # the tag in the API's description

    @routes.get("/api/runs/{name}", result="fairmile.runs.record.run:Run")
    def show_run(request: Request, name: str) -> Result:
        '''Return one run.'''                                  # the description that people read
        return workspace_of(request).runs.show(name)           # one call; its `to_dict()` is the answer, as in `--json`

    @routes.post("/api/runs/{name}/cancel", right="start", result="fairmile.runs.results:Cancelled")
    def cancel_run(request: Request, name: str) -> Result: ...

A handler takes `request` and returns a `Result`, a `Part` of one (see `answers.page_of`: the rest is behind the `Link`
header), or a response. It is a plain function and runs in a thread. Errors are raised: `errors.py` answers with the
object that `--json` prints. `right` is "read" for GET, and every other method must say what it needs: "browse" (the
catalog as far as one may see it), "read" (computes only), "start" (starts or changes work) or "admin". Types in the
signature become the description at `/openapi.json`.

How to add a page. Write `web/pages/<noun>.py` and `web/templates/<noun>.html`, which extends `base.html`:

    routes = Routes("runs")

    @routes.page("/runs")
    def runs_page(request: Request, q: str = "") -> Page:
        rows = workspace_of(request).runs.ls(...)
        return Page("runs.html", "Runs", {"rows": rows.to_dict()})

`Page.blocks` takes the blocks of `fairmile.reports.blocks` instead of, or beside, a template: reports and these pages
share their components and `page.css`. `NAVIGATION` in `web/table.py` has every entry of the menu; one without a page is
not shown. All text is escaped, and the policy allows no inline script and no inline style: put behaviour into a file
below `static/` and name it in `Page.scripts`. `static/app.js` knows these attributes:

    <form data-instant="results">      sends itself while one types, and fills the element with that id with the
                                       block of the same name (asked for with the header Fairmile-Part)
    <button data-copy="id">            copies the text of an element
    <body data-live="runs run:abc">    opens the one stream of the page; `fairmile:<topic>` events arrive on `document`

How to add a live topic. Write a `Topic` (see `live.py`) in `web/topics/<noun>.py`, and name it in `TOPICS` of
`web/table.py`.

Who asks: `identity_of(request)`; what they may do: `identity.require("start")`; both come from `access.py`.
Tests: `tests/web/conftest.py` has `server`, `client`, `page` and `page_is_sound(page, path)`.
"""
