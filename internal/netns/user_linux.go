package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// marker tells the program that RunAsRoot has started it, and what the parent
// would otherwise not be told.
const marker = "LBPRIM_USER_NAMESPACE"

// Inside reports whether the program was started by RunAsRoot.
func Inside() bool { return os.Getenv(marker) != "" }

// RunAsRoot starts the running program once more, with the same arguments and standard files,
// as root of a user namespace of its own, in which it may make network namespaces,
// and returns its exit status. Interrupts reach the child; when the parent dies, so does the child.
// An error says that the kernel refused the user namespace: the child has not run.
func RunAsRoot() (status int, err error) {
	// The child is told of the death of the thread that started it, not of the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		GidMappingsEnableSetgroups: false,
		Pdeathsig:                  syscall.SIGTERM,
	}
	// From a terminal the child gets the interrupt too; a signal sent to this process alone is passed on.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("netns: new user namespace: %w", err)
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s)
			case <-done:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(done)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return 128 + int(w.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
