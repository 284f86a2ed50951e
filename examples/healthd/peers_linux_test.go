package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/stretchr/testify/require"
)

// end stops a process that the test started.
func end(t *testing.T, cmd *exec.Cmd) {
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }() // which may have been waited for
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	})
}

// HAProxy takes a server out and in again as healthd says, by both kinds of agent check. It delays the last packet of
// its handshake, so that an agent that is sent nothing hears of it late: shorter intervals would time out.
func TestHAProxyAgentCheck(t *testing.T) {
	haproxy := testenv.NeedServers(t, "haproxy")[0]
	web, sick := site(t)
	asked, told, front := free(t), free(t), free(t)
	name := write(t, fmt.Sprintf(`version: 1
checks:
  web: {method: http, target: "%s", interval: 100ms, timeout: 10s, fall: 1}
policies: {shop: web}
agents: [{listen: "%s"}, {listen: "%s", of: web}]
`, web, asked, told))
	start(t, name, &lines{most: 1})

	dir := testenv.SocketDir(t)
	socket, conf := filepath.Join(dir, "s"), filepath.Join(dir, "conf")
	_, askedPort, _ := net.SplitHostPort(asked)
	_, toldPort, _ := net.SplitHostPort(told)
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `global
    stats socket %s
defaults
    mode tcp
    timeout connect 5s
    timeout client 5s
    timeout server 5s
listen shop
    bind %s
    server s1 %s agent-check agent-addr 127.0.0.1 agent-port %s agent-inter 1s agent-send "shop\n"
    server s2 %s agent-check agent-addr 127.0.0.1 agent-port %s agent-inter 1s
`, socket, front, web, askedPort, web, toldPort), 0o600))
	cmd := exec.Command(haproxy, "-db", "-f", conf)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	end(t, cmd)

	state := func() string {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		fmt.Fprint(c, "show stat\n")
		text := ""
		for s := bufio.NewScanner(c); s.Scan(); {
			f := strings.Split(s.Text(), ",")
			if len(f) > 17 && (f[1] == "s1" || f[1] == "s2") {
				text += f[1] + " " + strings.Fields(f[17])[0] + " "
			}
		}
		return text
	}
	wait := func(want string) {
		t.Helper()
		last := ""
		defer func() {
			if t.Failed() {
				t.Logf("HAProxy: got %q", last)
			}
		}()
		eventually(t, "HAProxy: want "+want, func() bool { last = state(); return last == want })
	}
	wait("s1 no s2 no ") // "no check": no health check, and the agent has nothing against it
	served := func() bool { status, _ := get(t, "http://"+front+"/"); return status == http.StatusOK }
	require.True(t, served(), "through HAProxy")
	sick.Store(true)
	wait("s1 DOWN s2 DOWN ")
	status, _ := get(t, "http://"+front+"/")
	require.Zero(t, status, "HAProxy has no server, and ends the connection")
	sick.Store(false)
	wait("s1 no s2 no ")
	require.True(t, served(), "through HAProxy again")
}

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	n, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// keepalived gives its address up and takes it back as the file says.
func TestKeepalivedTrackFile(t *testing.T) {
	testenv.NeedNetns(t)
	keepalived := testenv.NeedServers(t, "keepalived")[0]
	web, sick := site(t)
	dir := t.TempDir()
	track := filepath.Join(dir, "shop")
	name := write(t, fmt.Sprintf(`version: 1
checks:
  web: {method: http, target: "%s", interval: 100ms, timeout: 10s, fall: 1}
policies: {shop: web}
files: [{path: "%s", of: web}]
`, web, track))
	start(t, name, &lines{most: 1})
	eventually(t, "the file says up", func() bool { return content(track) == "0\n" })

	a, b := namespace(t), namespace(t)
	require.NoError(t, netns.Join(
		netns.End{NS: a, Name: "e0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.1.1/24")}},
		netns.End{NS: b, Name: "e0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.1.2/24")}}))
	conf := filepath.Join(dir, "keepalived.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `global_defs {
    router_id healthd_test
    vrrp_garp_master_delay 0
}
vrrp_track_file shop {
    file %s
    weight 0
}
vrrp_instance v {
    interface e0
    state MASTER
    virtual_router_id 51
    priority 100
    advert_int 0.2
    virtual_ipaddress { 10.1.1.100/24 }
    track_file { shop }
}
`, track), 0o600))
	cmd := exec.Command(keepalived, "--dont-fork", "--log-console", "--vrrp", "-f", conf,
		"-p", filepath.Join(dir, "pid"), "-r", filepath.Join(dir, "vrrp.pid"))
	log := &lines{most: 50}
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, a.Do(cmd.Start))
	end(t, cmd)
	holds := func() bool {
		var out []byte
		err := a.Do(func() (err error) {
			out, err = exec.Command("ip", "-4", "addr", "show", "dev", "e0").CombinedOutput()
			return err
		})
		return err == nil && strings.Contains(string(out), "10.1.1.100/")
	}
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(log.last(), "\n"))
		}
	}()
	eventually(t, "keepalived takes the address", holds)
	sick.Store(true)
	eventually(t, "keepalived gives the address up", func() bool { return !holds() })
	sick.Store(false)
	eventually(t, "keepalived takes the address back", holds)
}
