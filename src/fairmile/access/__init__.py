"""Who may see and fetch which asset of a server: accounts, tokens, grants, requests, audit log."""
