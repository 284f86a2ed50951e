package cluster

// StateOf is what the absence of members means.
var StateOf = stateOf
