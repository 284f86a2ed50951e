package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/lbprim/lbprim/internal/netns"
)

// errNoProcess says that a mode works in the kernel, or not at all, and has nothing to measure.
var errNoProcess = errors.New("no process of its own")

const (
	// idlePort is where the connections are opened that memory is measured with: the servers there have many processes.
	idlePort = "81"
	// perHolder is how many connections one process, and one address, opens: open files are limited for each process.
	perHolder = 12_500
)

// filesFor is how many open files that many sessions take in a proxy, with room for others.
func filesFor(sessions int) uint64 { return uint64(2*sessions + 1000) }

// memory is how much the balancer's process keeps resident while that many connections are open and idle. It is all of it, as what it has kept from work
// before cannot be told from what the sessions take; the kernel's sockets of a proxy are not in it. A proxy that may not have
// as many files open gets as many connections as it may, and what it needs for more is calculated from those.
func memory(ctx context.Context, l *lab, addr string, o options) (mb float64, err error) {
	if l.pid == 0 {
		return 0, errNoProcess
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	sessions := o.sessions
	if l.proxy {
		sessions = min(sessions, o.most)
	}
	if err := l.serveIdle(ctx, o.sessions); err != nil {
		return 0, err
	}
	before, err := resident(l.pid)
	if err != nil {
		return 0, err
	}
	var holders []*holder
	defer func() {
		for _, h := range holders {
			h.close()
		}
	}()
	for i := 0; i*perHolder < sessions; i++ {
		h, err := l.hold(ctx, i, addr, min(perHolder, sessions-i*perHolder))
		if err != nil {
			return 0, err
		}
		holders = append(holders, h)
	}
	for _, h := range holders {
		if err := h.await("open"); err != nil {
			return 0, fmt.Errorf("%d connections: %w", sessions, err)
		}
	}
	after, err := resident(l.pid)
	if err != nil {
		return 0, err
	}
	// They must still work: a balancer that forgets sessions needs little memory.
	for _, h := range holders {
		if err := h.check(); err != nil {
			return 0, fmt.Errorf("a session of %d was lost: %w", sessions, err)
		}
	}
	if sessions < o.sessions {
		l.calculated = true
		after += (after - before) / float64(sessions) * float64(o.sessions-sessions)
	}
	return after / 1024, nil
}

// serveIdle starts servers for that many connections.
func (l *lab) serveIdle(ctx context.Context, sessions int) error {
	for i, s := range []*netns.Namespace{l.first, l.other} {
		conf := fmt.Sprintf(`pid %s/idle%d.pid; worker_processes %d; daemon off; error_log /dev/null;
events { worker_connections 19000; }
http { access_log off; client_header_timeout 10m; keepalive_timeout 10m;
 server { listen 81 reuseport backlog=8192; listen [::]:81 ipv6only=on reuseport backlog=8192; location / { return 200 "hello\n"; } } }
`, l.tmp, i, sessions/perHolder+1) // one server may get all of them
		file := filepath.Join(l.tmp, fmt.Sprintf("idle%d.conf", i))
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return err
		}
		if _, err := l.start(s, "nginx", "-c", file); err != nil {
			return err
		}
		if err := reach(ctx, s, l.net.servers[i], idlePort); err != nil {
			return err
		}
	}
	return nil
}

// resident is the memory of a process that is in use, in kB (proc(5)).
func resident(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := bytes.Cut(b, []byte("VmRSS:"))
	fields := bytes.Fields(rest)
	if !ok || len(fields) == 0 {
		return 0, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
	}
	return strconv.ParseFloat(string(fields[0]), 64)
}
