//go:build race

package sslpersist

// underRace makes long tests short where each step costs ten times as much.
const underRace = true
