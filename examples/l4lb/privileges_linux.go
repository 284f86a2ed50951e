package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// needed are the capabilities that the balancer needs: devices, routes and rules; packet sockets and probes by raw sockets.
const needed = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW

// dropPrivileges gives up all capabilities but those needed, for good, and runs the program anew without them: capabilities belong to
// threads, and only exec leaves the process with one. Who has no more than is needed goes on as he is.
func dropPrivileges() error {
	bounding, err := capabilities("CapBnd")
	if err != nil {
		return err
	}
	permitted, err := capabilities("CapPrm")
	if err != nil {
		return err
	}
	if permitted&^needed == 0 || bounding&^needed == 0 {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGHUP) // until the program listens to it again: the file is read after that anyway
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for c := range uintptr(64) {
		if bounding&(1<<c) != 0 && needed&(1<<c) == 0 {
			// It concerns this thread, and what it executes.
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return fmt.Errorf("give up capability %d: %w", c, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return os.NewSyscallError("execve", syscall.Exec(exe, os.Args, os.Environ()))
}

// capabilities reads a set of the calling thread's capabilities (proc(5)).
func capabilities(name string) (uint64, error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
		}
	}
	return 0, fmt.Errorf("/proc/thread-self/status has no %s", name)
}
