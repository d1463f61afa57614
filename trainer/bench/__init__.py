"""`gradwire bench`: what the parts cost on the machines at hand."""
