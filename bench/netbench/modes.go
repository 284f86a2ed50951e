package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/internal/netns"
)

// mode is a way to balance. Start returns the address clients use and the balancer's process, 0 for the kernel.
type mode struct {
	name  string
	proxy bool // it has two files open for each connection
	start func(l *lab, o options) (addr string, pid int, err error)
}

var modes = []mode{
	{"direct", false, func(l *lab, _ options) (string, int, error) { return l.net.servers[0], 0, nil }},
	{"nftables", false, startNft},
	{"haproxy", true, func(l *lab, o options) (string, int, error) { return startHAProxy(l, o, "") }},
	{"haproxy-splice", true, func(l *lab, o options) (string, int, error) {
		return startHAProxy(l, o, "  option splice-auto\nglobal\n  maxpipes 500\n")
	}},
	{"nginx", true, startNginx},
	{"bare-tun", false, startBareTUN},
	{"bare-afpacket", false, startBareAFPacket},
	{"tun", false, func(l *lab, o options) (string, int, error) { return startOurs(l, o, "tun") }},
	{"afpacket-calls", false, func(l *lab, o options) (string, int, error) { return startOurs(l, o, "afpacket", "-no-ring") }},
	{"afpacket", false, func(l *lab, o options) (string, int, error) { return startOurs(l, o, "afpacket") }},
}

// modeNames returns the names of the modes that are measured unless others are chosen, and of all.
func modeNames() (usual, all []string) {
	for _, m := range modes {
		usual = append(usual, m.name)
	}
	all = slices.Clone(usual)
	for _, m := range delayedModes {
		all = append(all, m.name)
	}
	return usual, all
}

// ports are what balancers listen on: bulk, web, and connections that are kept open to measure memory.
var ports = []string{"5201", "80", idlePort}

func modeByName(name string) *mode {
	for _, list := range [][]mode{modes, delayedModes} {
		for i := range list {
			if list[i].name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func ip(l *lab, host *netns.Namespace, args ...string) error {
	_, err := l.command(context.Background(), host, "ip", args...)
	return err
}

func startNft(l *lab, _ options) (string, int, error) {
	n := l.net
	if err := ip(l, l.balancer, "route", "add", n.alone(), "via", n.servers[0]); err != nil {
		return "", 0, err
	}
	file, family := filepath.Join(l.tmp, "nft"), "ip"
	if n.v6() {
		family = "ip6"
	}
	rules := fmt.Sprintf("table %[1]s lb { chain pre { type nat hook prerouting priority -100; %[1]s daddr %[2]s dnat to jhash %[1]s saddr mod 2 map { 0 : %[3]s, 1 : %[4]s }; }; }\n",
		family, n.vip, n.servers[0], n.servers[1])
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		return "", 0, err
	}
	_, err := l.command(context.Background(), l.balancer, "nft", "-f", file)
	return n.vip, 0, err
}

// startHAProxy runs TCP mode, the bulk port by source so that iperf3's connections meet.
func startHAProxy(l *lab, o options, extra string) (string, int, error) {
	file := filepath.Join(l.tmp, "haproxy.cfg")
	conf := fmt.Sprintf("global\n  nbthread 1\n  maxconn %[1]d\ndefaults\n  mode tcp\n  maxconn %[1]d\n  timeout connect 5s\n  timeout client 10m\n  timeout server 10m\n", max(100, min(o.sessions+1000, o.most))) + extra
	for _, port := range ports {
		conf += fmt.Sprintf("listen p%s\n  bind %s\n", port, net.JoinHostPort(l.net.vip, port))
		if port == "5201" {
			conf += "  balance source\n"
		}
		for i, s := range l.net.servers {
			conf += fmt.Sprintf("  server s%d %s\n", i, net.JoinHostPort(s, port))
		}
	}
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return "", 0, err
	}
	return startProxy(l, "haproxy", "-db", "-f", file)
}

func startNginx(l *lab, _ options) (string, int, error) {
	file := filepath.Join(l.tmp, "stream.conf")
	module := "/usr/lib/nginx/modules/ngx_stream_module.so"
	if _, err := os.Stat(module); err != nil {
		return "", 0, &absentError{"nginx's stream module"}
	}
	conf := fmt.Sprintf("load_module %s; worker_processes 1; daemon off; master_process off; pid %s/stream.pid; error_log /dev/null; worker_rlimit_nofile 262144;\nevents { worker_connections 220000; }\nstream {\n", module, l.tmp)
	for _, port := range ports {
		hash := ""
		if port == "5201" {
			hash = "hash $remote_addr; "
		}
		conf += fmt.Sprintf("upstream p%s { %sserver %s; server %s; }\nserver { listen %s; proxy_pass p%s; }\n", port, hash,
			net.JoinHostPort(l.net.servers[0], port), net.JoinHostPort(l.net.servers[1], port), net.JoinHostPort(l.net.vip, port), port)
	}
	if err := os.WriteFile(file, []byte(conf+"}\n"), 0o600); err != nil {
		return "", 0, err
	}
	return startProxy(l, "nginx", "-c", file)
}

func startProxy(l *lab, name string, args ...string) (string, int, error) {
	if err := ip(l, l.balancer, "addr", "add", l.net.alone(), "dev", "lo"); err != nil {
		return "", 0, err
	}
	cmd, err := l.start(l.balancer, name, args...)
	if err != nil {
		return "", 0, err
	}
	return l.net.vip, cmd.Process.Pid, nil
}

// buildBare builds a bare forwarder once.
func buildBare(l *lab, o options, name string) (string, error) {
	if l.net.v6() {
		return "", &absentError{"a bare forwarder of IPv6"}
	}
	if _, err := os.Stat(filepath.Join(o.bare, name)); err != nil {
		return "", &absentError{"the bare forwarder's source"}
	}
	bin := filepath.Join(l.tmp, name)
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	cmd := exec.Command("go", "build", "-o", bin, "./"+name)
	cmd.Dir = o.bare
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return bin, nil
}

func startBareTUN(l *lab, o options) (string, int, error) {
	bin, err := buildBare(l, o, "bare-tun")
	if err != nil {
		return "", 0, err
	}
	cmd, err := l.start(l.balancer, bin, "-spin", "200")
	if err != nil {
		return "", 0, err
	}
	for range 100 {
		if err = ip(l, l.balancer, "link", "set", "tun0", "up", "txqueuelen", "5000"); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, args := range []string{"route replace " + l.net.alone() + " dev tun0", "route replace default dev tun0 table 100", "rule add iif e1 lookup 100", "rule add iif e2 lookup 100"} {
		if err == nil {
			err = ip(l, l.balancer, strings.Fields(args)...)
		}
	}
	if err == nil {
		err = l.balancer.Sysctl("net.ipv4.conf.tun0.rp_filter", "0")
	}
	return l.net.vip, cmd.Process.Pid, err
}

func startBareAFPacket(l *lab, o options) (string, int, error) {
	bin, err := buildBare(l, o, "bare-afpacket")
	if err != nil {
		return "", 0, err
	}
	var macs []string
	for _, ns := range []*netns.Namespace{l.client, l.first, l.other} {
		m, err := mac(ns)
		if err != nil {
			return "", 0, err
		}
		macs = append(macs, m)
	}
	// The client's kernel must find the address: the balancer's answers for it by its route.
	if err := ip(l, l.balancer, "route", "replace", l.net.alone(), "dev", "c0"); err != nil {
		return "", 0, err
	}
	if err := l.balancer.Sysctl("net.ipv4.ip_forward", "0"); err != nil {
		return "", 0, err
	}
	cmd, err := l.start(l.balancer, bin, "-c", "c0", "-cmac", macs[0], "-s", "e1="+macs[1]+",e2="+macs[2])
	if err != nil {
		return "", 0, err
	}
	return l.net.vip, cmd.Process.Pid, nil
}

// startOurs runs this program as the balancer.
func startOurs(l *lab, o options, device string, more ...string) (string, int, error) {
	self, err := os.Executable()
	if err != nil {
		return "", 0, err
	}
	if device == "afpacket" {
		for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
			if err := l.balancer.Sysctl(key, "0"); err != nil {
				return "", 0, err
			}
		}
		if l.net.v6() { // or the kernel, without a route, says so to clients
			if err := ip(l, l.balancer, "route", "add", "blackhole", l.net.alone()); err != nil {
				return "", 0, err
			}
		}
	}
	args := append([]string{"balancer", "-device", device, "-vip", l.net.vip, "-servers", strings.Join(l.net.servers[:], ",")}, more...)
	if o.profiles != "" {
		args = append(args, "-stats", "-cpuprofile", filepath.Join(o.profiles, device+".cpu"))
	}
	cmd, err := l.start(l.balancer, self, args...)
	if err != nil {
		return "", 0, err
	}
	return l.net.vip, cmd.Process.Pid, nil
}
