//go:build !unix

package probe

import "os/exec"

// killGroup does nothing: the program alone is killed.
func killGroup(*exec.Cmd) {}

// killRest does nothing: what the program started is not known.
func killRest(*exec.Cmd) {}
