"""Guards against untrusted text and for secrets: screening, redaction, private files, the policy of callers."""
