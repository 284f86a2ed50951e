//go:build race

package healthcheck_test

const raceEnabled = true
