package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lbprim/lbprim/internal/netns"
)

// absentError says that a peer is not installed.
type absentError struct{ what string }

func (e *absentError) Error() string { return e.what + " is absent" }

// lab is the hosts: a client, the balancer, two servers that route through it.
type lab struct {
	tmp                            string
	net                            *network // that is measured; the hosts have both
	client, balancer, first, other *netns.Namespace
	procs                          []*exec.Cmd
	pid                            int  // of the balancer, 0 for the kernel
	proxy                          bool // see mode
	calculated                     bool // the last figure is, from others
}

func newLab(ctx context.Context, tmp string, n *network) (*lab, error) {
	l := &lab{tmp: tmp, net: n}
	for _, ns := range []**netns.Namespace{&l.client, &l.balancer, &l.first, &l.other} {
		var err error
		if *ns, err = netns.New(); err != nil {
			l.close()
			return nil, err
		}
	}
	if err := l.wire(ctx); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) wire(ctx context.Context) error {
	for i, host := range []*netns.Namespace{l.client, l.first, l.other} {
		var here, there []netip.Prefix
		var via []netip.Addr
		for _, n := range networks {
			here, there = append(here, n.hosts[i][0]), append(there, n.hosts[i][1])
			via = append(via, n.hosts[i][1].Addr())
		}
		if err := netns.Join(netns.End{NS: host, Name: "eth0", Addrs: here}, netns.End{NS: l.balancer, Name: []string{"c0", "e1", "e2"}[i], Addrs: there}); err != nil {
			return err
		}
		if err := host.DefaultVia(via...); err != nil {
			return err
		}
	}
	if err := l.balancer.Router(); err != nil {
		return err
	}
	for name, value := range map[string]string{"net.ipv4.ip_local_port_range": "1024 65535", "net.ipv4.tcp_tw_reuse": "1"} {
		if err := l.client.Sysctl(name, value); err != nil {
			return err
		}
	}
	cert, key, err := l.certificate()
	if err != nil {
		return err
	}
	for i, s := range []*netns.Namespace{l.first, l.other} {
		conf := fmt.Sprintf(`pid %s/web%d.pid; worker_processes 1; daemon off; error_log /dev/null; worker_rlimit_nofile 131072;
events { worker_connections 65536; }
http { access_log off; client_header_timeout 10m; keepalive_timeout 10m; keepalive_requests 1000000000; server { listen 80 backlog=8192; listen [::]:80 ipv6only=on backlog=8192; location / { return 200 "hello\n"; } }
 server { listen 443 ssl backlog=8192; listen [::]:443 ssl ipv6only=on backlog=8192; ssl_certificate %[3]s; ssl_certificate_key %[4]s; ssl_session_tickets off; ssl_session_cache shared:s:10m; location / { return 200 "hello\n"; } } }
`, l.tmp, i, cert, key)
		file := filepath.Join(l.tmp, fmt.Sprintf("web%d.conf", i))
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return err
		}
		if _, err := l.start(s, "nginx", "-c", file); err != nil {
			return err
		}
		if _, err := l.start(s, "iperf3", "-s", "-p", "5201"); err != nil {
			return err
		}
	}
	for _, a := range l.net.servers {
		if err := l.ready(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// find looks where distributions put daemons as well.
func find(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name), nil
		}
	}
	return "", &absentError{name}
}

// start runs a program on a host until close.
func (l *lab) start(host *netns.Namespace, name string, args ...string) (*exec.Cmd, error) {
	path, err := find(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	if name == "nginx" || name == "iperf3" {
		cmd.Stderr = nil
	}
	if err := host.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	l.procs = append(l.procs, cmd)
	return cmd, nil
}

// command runs a program on a host to its end.
func (l *lab) command(ctx context.Context, host *netns.Namespace, name string, args ...string) ([]byte, error) {
	path, err := find(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := host.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := cmd.Wait(); err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}

// ready waits until the client reaches both ports of an address.
func (l *lab) ready(ctx context.Context, addr string) error {
	for _, port := range []string{"80", "5201"} {
		if err := reach(ctx, l.client, addr, port); err != nil {
			return err
		}
	}
	return nil
}

// reach waits until a host reaches a port of an address.
func reach(ctx context.Context, host *netns.Namespace, addr, port string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		short, cancel := context.WithTimeout(ctx, time.Second)
		c, err := host.DialContext(short, "tcp", net.JoinHostPort(addr, port))
		cancel()
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("%s port %s is not reached: %w", addr, port, err)
		}
	}
}

func (l *lab) close() {
	for _, cmd := range l.procs {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range l.procs {
		done := make(chan struct{})
		go func() {
			_ = cmd.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(3 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}
	for _, ns := range []*netns.Namespace{l.client, l.balancer, l.first, l.other} {
		if ns != nil {
			ns.Close()
		}
	}
}

// mac returns the hardware address of a host's interface.
func mac(host *netns.Namespace) (m string, err error) {
	err = host.Do(func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err == nil {
			m = ifi.HardwareAddr.String()
		}
		return err
	})
	return m, err
}

// ticks is the CPU time of a process in hundredths of a second (proc(5)); 0 without one.
func ticks(pid int) uint64 {
	if pid == 0 {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseUint(f[11], 10, 64)
	system, _ := strconv.ParseUint(f[12], 10, 64)
	return user + system
}
