"""`python -m fairmile.predict.fake_device REQUESTS.json OUT.json`: trace what each request names, write the traces."""

from __future__ import annotations

import sys

from fairmile.base.garbage import search_rarely

if __name__ == "__main__":
    search_rarely()
    from fairmile.predict.fake_device.child import main

    sys.exit(main(sys.argv[1:]))
