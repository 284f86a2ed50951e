package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// address returns the i-th target; all of 127.0.0.0/8 is this machine.
func address(i int) string { return fmt.Sprintf("127.9.%d.%d", i/250, i%250+1) }

// peer writes a configuration for who into dir, and returns the command to run.
func peer(dir, who, kind string, port int, o *options) (*exec.Cmd, error) {
	path, err := exec.LookPath(who)
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, who+".conf")
	var b strings.Builder
	if who == "haproxy" {
		b.WriteString("global\n maxconn 100\ndefaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n" +
			// Without a listener it would not start.
			"listen all\n bind abns@lbprim-healthcheck-bench\n")
		if kind == "http" {
			b.WriteString(" option httpchk HEAD /\n")
		}
		for i := range o.targets {
			fmt.Fprintf(&b, " server s%d %s:%d check inter %dms fall 3 rise 1\n", i, address(i), port, o.interval.Milliseconds())
		}
		return exec.Command(path, "-db", "-f", conf), os.WriteFile(conf, []byte(b.String()), 0o644)
	}
	fmt.Fprintf(&b, "global_defs {\n router_id bench\n}\nvirtual_server 127.99.99.99 %d {\n delay_loop %v\n lvs_sched rr\n lvs_method NAT\n protocol TCP\n", port, o.interval.Seconds())
	for i := range o.targets {
		check := "TCP_CHECK {\n  connect_timeout 5\n }"
		if kind == "http" {
			check = "HTTP_GET {\n  url {\n   path /\n   status_code 200\n  }\n  connect_timeout 5\n }"
		}
		fmt.Fprintf(&b, " real_server %s %d {\n %s\n }\n", address(i), port, check)
	}
	b.WriteString("}\n")
	pids := filepath.Join(dir, "pid")
	cmd := exec.Command(path, "-n", "-C", "-f", conf, "-p", pids, "-c", pids+"c")
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		lib, err := fakeIPVS(dir)
		if err != nil {
			return nil, fmt.Errorf("no IPVS in this kernel, nor a stand-in for it: %w", err)
		}
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+lib)
	}
	return cmd, os.WriteFile(conf, []byte(b.String()), 0o644)
}

//go:embed ipvs.txt
var ipvs []byte

// fakeIPVS builds a library that answers for IPVS.
func fakeIPVS(dir string) (string, error) {
	src, lib := filepath.Join(dir, "ipvs.c"), filepath.Join(dir, "ipvs.so")
	if err := os.WriteFile(src, ipvs, 0o644); err != nil {
		return "", err
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", lib, src, "-ldl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cc: %w: %s", err, out)
	}
	return lib, nil
}
