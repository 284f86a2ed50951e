package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A Nfcapd is a running collector of flows, of the package nfdump.
type Nfcapd struct {
	net.Conn // to it, over UDP
	t        testing.TB
	dir      string
	dump     string
	cmd      *exec.Cmd
	done     chan struct{} // closed when it has ended
	err      error         // then
	log      bytes.Buffer  // of the process, until done
}

// StartNfcapd starts nfcapd on a port of the loopback interface, or skips t without it.
func StartNfcapd(t testing.TB) *Nfcapd {
	t.Helper()
	bins := NeedServers(t, "nfcapd", "nfdump")
	n := &Nfcapd{t: t, dir: t.TempDir(), dump: bins[1], done: make(chan struct{})}
	addr := FreePort(t).String()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n.cmd = exec.Command(bins[0], "-l", n.dir, "-b", "127.0.0.1", "-p", port, "-t", "3600")
	n.cmd.Stdout, n.cmd.Stderr = &n.log, &n.log
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := n.cmd
	go func() {
		n.err = cmd.Wait()
		close(n.done)
	}()
	t.Cleanup(func() {
		if n.Conn != nil {
			n.Close()
		}
		_ = cmd.Process.Kill() // if it has not ended
		<-n.done
	})
	if n.Conn, err = net.Dial("udp", addr); err != nil {
		t.Fatal(err)
	}
	// It listens when the kernel no longer refuses datagrams; a refusal is told to a later call.
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if _, err := n.Write(nil); err == nil {
			time.Sleep(20 * time.Millisecond)
			if _, err := n.Write(nil); err == nil {
				return n
			}
		}
		select {
		case <-n.done:
			t.Fatalf("nfcapd: %v\n%s", n.err, &n.log)
		default:
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal("nfcapd does not listen")
		}
	}
}

// waiting reports whether the kernel has datagrams that the collector has not read (proc_net(5), /proc/net/udp).
func (n *Nfcapd) waiting() bool {
	b, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		n.t.Fatal(err)
	}
	local := fmt.Sprintf("0100007F:%04X", n.RemoteAddr().(*net.UDPAddr).Port)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && f[1] == local {
			_, received, _ := strings.Cut(f[4], ":")
			return strings.Trim(received, "0") != ""
		}
	}
	return false
}

// Records ends the collector and returns what nfdump reads of it, as from its JSON.
func (n *Nfcapd) Records() (records []map[string]any) {
	n.t.Helper()
	// It ends whatever the kernel has for it. On a busy machine a datagram that was sent may come to its queue a moment later.
	const looks, apart = 25, 20 * time.Millisecond
	begun := time.Now()
	for empty := 0; empty < looks; time.Sleep(apart) {
		if empty++; n.waiting() {
			empty = 0
		}
		if time.Since(begun) > 30*time.Second {
			n.t.Fatal("nfcapd does not read")
		}
	}
	if err := n.cmd.Process.Signal(os.Interrupt); err != nil {
		n.t.Fatal(err)
	}
	select {
	case <-n.done:
	case <-time.After(20 * time.Second):
		_ = n.cmd.Process.Kill()
		<-n.done
		n.t.Fatal("nfcapd did not end")
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, n.dump, "-R", n.dir, "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &records)
	}
	if err != nil {
		n.t.Fatalf("nfdump: %v\n%s\n%s", err, out, &n.log)
	}
	return records
}
