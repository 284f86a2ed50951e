package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"
)

// errNoProcess says that a mode works in the kernel, or not at all, and has nothing to measure.
var errNoProcess = errors.New("no process of its own")

// perAddress is how many connections one address of the client's opens to one port.
const perAddress = 25_000

// filesFor is how many open files that many sessions take in a proxy, with room for others.
func filesFor(sessions int) uint64 { return uint64(2*sessions + 1000) }

// memory is how much the balancer's process keeps resident while that many connections are open and idle. It is all of it, as what it has kept from work
// before cannot be told from what the sessions take; the kernel's sockets of a proxy are not in it.
func memory(ctx context.Context, l *lab, addr string, sessions int) (mb float64, err error) {
	if l.pid == 0 {
		return 0, errNoProcess
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	open := make([]net.Conn, 0, sessions)
	defer func() {
		for _, c := range open {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var fault error
	for i := range (sessions + perAddress - 1) / perAddress {
		local := netip.AddrFrom4([4]byte{10, 90, 0, byte(100 + i)})
		if err := ip(l, l.client, "addr", "replace", local.String()+"/24", "dev", "eth0"); err != nil {
			return 0, err
		}
		wg.Go(func() {
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), KeepAlive: -1}
			for range min(perAddress, sessions-i*perAddress) {
				c, err := l.client.DialWith(ctx, &d, "tcp", net.JoinHostPort(addr, "80"))
				mu.Lock()
				if err != nil {
					fault = errors.Join(fault, err)
					mu.Unlock()
					return
				}
				open = append(open, c)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if fault != nil {
		return 0, fmt.Errorf("%d of %d connections: %w", len(open), sessions, fault)
	}
	// The first and the last must still work: a balancer that forgets sessions needs little memory.
	for _, c := range []net.Conn{open[0], open[len(open)-1]} {
		if err := alive(c); err != nil {
			return 0, fmt.Errorf("a session of %d was lost: %w", sessions, err)
		}
	}
	kb, err := resident(l.pid)
	return kb / 1024, err
}

// alive makes a request.
func alive(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
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
