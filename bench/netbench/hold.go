package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"
)

// hold is the program of a client that keeps connections open. It says "open" once they are, "alive" for every line it reads, as long as the first and the
// last of them are answered, and ends with its input.
func hold(args []string) error {
	f := flag.NewFlagSet("hold", flag.ContinueOnError)
	from := f.String("from", "", "address of the client")
	to := f.String("to", "", "address and port of the balancer")
	n := f.Int("n", 1, "connections")
	if err := f.Parse(args); err != nil {
		return err
	}
	local, err := netip.ParseAddr(*from)
	if err != nil {
		return err
	}
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), KeepAlive: -1, Timeout: 20 * time.Second}
	open := make([]net.Conn, 0, *n)
	defer func() {
		for _, c := range open {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	for range *n {
		c, err := d.Dial("tcp", *to)
		if err != nil {
			return fmt.Errorf("%d of %d connections: %w", len(open), *n, err)
		}
		open = append(open, c)
	}
	fmt.Println("open")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		for _, c := range []net.Conn{open[0], open[len(open)-1]} {
			if err := alive(c); err != nil {
				return err
			}
		}
		fmt.Println("alive")
	}
	return nil
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

// holder is a process that runs hold.
type holder struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// hold starts the client's process number i.
func (l *lab) hold(ctx context.Context, i int, addr string, n int) (*holder, error) {
	local := l.net.holder(i)
	args := []string{"addr", "replace", local.String(), "dev", "eth0"}
	if l.net.v6() {
		args = append(args, "nodad")
	}
	if err := ip(l, l.client, args...); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "hold", "-from", local.Addr().String(), "-to", net.JoinHostPort(addr, idlePort), "-n", fmt.Sprint(n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.client.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("hold: %w", err)
	}
	return &holder{cmd, in, bufio.NewReader(out)}, nil
}

// await waits for a word of the process.
func (h *holder) await(word string) error {
	s, err := h.out.ReadString('\n')
	if strings.TrimSpace(s) == word {
		return nil
	}
	return errors.Join(fmt.Errorf("%q instead of %q", s, word), err)
}

func (h *holder) check() error {
	if _, err := io.WriteString(h.in, "check\n"); err != nil {
		return err
	}
	return h.await("alive")
}

func (h *holder) close() {
	h.in.Close()
	_ = h.cmd.Wait() // it has said what was wrong
}
