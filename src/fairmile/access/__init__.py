"""Who may see and fetch which asset of a served catalog: accounts, grants, requests, the audit log."""
