// Package sdnotify tells the service manager how the program is, by the protocol of sd_notify(3). Without a
// service manager that listens, nothing is sent.
package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// States that a program may send. Others are texts such as "STATUS=2 of 3 nodes up".
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Watchdog = "WATCHDOG=1"
)

// Notifier sends states to the service manager that started the program. The zero Notifier sends nothing. Its methods are
// safe for concurrent use.
type Notifier struct{ socket string }

// New returns the Notifier of the environment.
func New() Notifier { return Notifier{os.Getenv("NOTIFY_SOCKET")} }

// Send sends states. Nobody listening is no error.
func (n Notifier) Send(states ...string) error {
	if n.socket == "" {
		return nil
	}
	name := n.socket
	switch name[0] {
	case '@', '/': // an abstract name, which package net spells alike, or a path
	default:
		return fmt.Errorf("sdnotify: NOTIFY_SOCKET %q: want an absolute path or an abstract name", name)
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("sdnotify: %w", err)
	}
	_, err = c.Write([]byte(strings.Join(states, "\n")))
	return errors.Join(err, c.Close())
}

// Interval returns how often the service manager wants to hear Watchdog at the latest; 0 is never (sd_watchdog_enabled(3)).
func Interval() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || us <= 0 {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}
