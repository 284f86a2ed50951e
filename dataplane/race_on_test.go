//go:build race

package dataplane

// underRace makes tests short that take ten times as long, and are run without the race detector as well.
const underRace = true
