//go:build unix

package probe

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// killGroup has the program lead a process group of its own, which is killed as a
// whole.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}

// killRest kills what is left of the group. As long as there is something, its number is
// nobody else's.
func killRest(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // mostly there is nothing
	}
}
