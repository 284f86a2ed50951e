//go:build !race

package healthcheck_test

const raceEnabled = false
