package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type reading struct {
	micros float64 // CPU per check
	rate   float64 // checks per second
}

// child is a process with pipes to talk over.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func self(args ...string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd, in, bufio.NewScanner(out)}, nil
}

// ask makes the child say a number: what it counted so far.
func (c *child) ask() (int, error) {
	if _, err := io.WriteString(c.in, "?\n"); err != nil {
		return 0, err
	}
	if !c.out.Scan() {
		return 0, fmt.Errorf("%s ended", filepath.Base(c.cmd.Path))
	}
	return strconv.Atoi(c.out.Text())
}

func (c *child) stop() {
	_ = c.in.Close() // it ends by itself then
	_ = c.cmd.Wait()
}

func measure(mode string, o *options) (reading, error) {
	who, kind, _ := strings.Cut(mode, "-")
	targets, err := self("targets", "-kind", kind)
	if err != nil {
		return reading{}, err
	}
	defer targets.stop()
	port, err := targets.ask()
	if err != nil {
		return reading{}, err
	}
	// A half-open check reaches no accept, nor does HAProxy's of TCP, which resets before
	// the handshake is over.
	count := targets.ask
	if mode == "haproxy-tcp" && o.alone {
		count = opens
	}
	var pgrp int
	if who == "lbprim" {
		m, err := self("monitor", "-kind", kind, "-targets", strconv.Itoa(o.targets), "-interval", o.interval.String(), "-port", strconv.Itoa(port))
		if err != nil {
			return reading{}, err
		}
		defer m.stop()
		pgrp = m.cmd.Process.Pid
		count = m.ask
	} else {
		dir, err := os.MkdirTemp("", "lbprim-healthcheck-")
		if err != nil {
			return reading{}, err
		}
		defer os.RemoveAll(dir)
		cmd, err := peer(dir, who, kind, port, o)
		if err != nil {
			return reading{}, err
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return reading{}, err
		}
		pgrp = cmd.Process.Pid
		defer func() {
			_ = syscall.Kill(-pgrp, syscall.SIGTERM)
			_ = cmd.Wait()
		}()
	}
	time.Sleep(2*o.interval + time.Second) // started, and all targets up
	cpu0, n0, t0 := cpuOf(pgrp), 0, time.Now()
	if n0, err = count(); err != nil {
		return reading{}, err
	}
	time.Sleep(o.seconds)
	n1, err := count()
	if err != nil {
		return reading{}, err
	}
	cpu, n, d := cpuOf(pgrp)-cpu0, n1-n0, time.Since(t0)
	if mode == "haproxy-tcp" && !o.alone { // it is taken at its word
		n = int(d.Seconds() / o.interval.Seconds() * float64(o.targets))
	}
	if rate := float64(n) / d.Seconds(); rate < 0.7*float64(o.targets)/o.interval.Seconds() {
		return reading{}, fmt.Errorf("it made %.0f checks per second, want %.0f", rate, float64(o.targets)/o.interval.Seconds())
	}
	return reading{float64(cpu.Microseconds()) / float64(n), float64(n) / d.Seconds()}, nil
}

// cpuOf returns the CPU time of all processes of a group.
func cpuOf(pgrp int) (sum time.Duration) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// The command name may hold blanks; the fields after it do not.
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) < 13 || f[2] != strconv.Itoa(pgrp) {
			continue
		}
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		sum += time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
	}
	return sum
}
