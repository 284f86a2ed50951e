//go:build !race

package dataplane

const underRace = false
