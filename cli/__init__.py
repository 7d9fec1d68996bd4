"""The `domicile` command: what operators and developers type. Nothing else imports it."""
