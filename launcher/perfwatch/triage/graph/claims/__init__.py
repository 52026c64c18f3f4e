"""Who can release what: a module for each kind of resource."""
