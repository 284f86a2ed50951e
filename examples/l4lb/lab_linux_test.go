package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// patience is how long tests wait for what must happen, on a machine that is busy with others.
const patience = 30 * time.Second

// labHosts is a client, the balancer, and two web servers that say who they are, in both families.
type labHosts struct {
	client, balancer *netns.Namespace
	servers          [2]*netns.Namespace
}

func newHosts(t *testing.T) *labHosts {
	testenv.NeedNetns(t)
	t.Parallel() // nobody else is in these namespaces, and most of the time is spent waiting
	h := &labHosts{}
	rig.Hosts(t, &h.client, &h.balancer, &h.servers[0], &h.servers[1])
	join := func(ns *netns.Namespace, lbIf string, net int) {
		rig.Cable{Hub: h.balancer, Host: ns, Name: lbIf, V4: "10.9.%d.%d/24", V6: "fd09:%d::%d/64", Number: net}.Plug(t)
	}
	join(h.client, "c0", 0)
	for i, s := range h.servers {
		join(s, fmt.Sprintf("e%d", i+1), i+1)
		l, err := s.Listen(t.Context(), "tcp", ":8080")
		require.NoError(t, err)
		srv := &http.Server{Handler: server(i + 1)}
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { srv.Close() })
	}
	return h
}

// server is a web server that says its number, and on /slow a tick now and then for as long as the client stays.
func server(number int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "server %d", number) })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		for t := time.NewTicker(50 * time.Millisecond); ; {
			if _, err := fmt.Fprintf(w, "tick %d\n", number); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-t.C:
			case <-r.Context().Done():
				return
			}
		}
	})
	return mux
}

const labFile = `version: 1
device: {type: %s, interfaces: [%s], queues: 2}
admin: {socket: none}
farms:
  v4:
    metric: roundrobin
    mode: server-per-session
    check: {method: http, interval: 200ms, timeout: 10s, fall: 2}
    nodes:
      - {name: s1, address: "10.9.1.2:8080"}
      - {name: s2, address: "10.9.2.2:8080"}
  v6:
    metric: roundrobin
    mode: server-per-session
    nodes:
      - {name: s1, address: "[fd09:1::2]:8080"}
      - {name: s2, address: "[fd09:2::2]:8080"}
services:
  - {name: web4, vip: 10.9.100.1, protocol: tcp, port: 80, farm: v4}
  - {name: web6, vip: "fd09:100::1", protocol: tcp, port: 80, farm: v6}
`

// built builds the program once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "l4lb")
	if err != nil {
		return "", err
	}
	return rig.Build(dir, "l4lb")
})

func TestMain(m *testing.M) {
	status := m.Run()
	if bin, err := built(); err == nil {
		_ = os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(status)
}

// process is a running l4lb in the balancer's namespace.
type process struct {
	t      *testing.T
	h      *labHosts
	file   string // its configuration
	socket string // its admin socket, "" if its configuration names another
	log    *rig.Log
	env    []string // more variables of its environment
	*rig.Process
}

// start runs l4lb until the test ends, and then wants it to end by itself. In the text, SOCKET and DIR stand for a socket and a folder of the test's.
func (h *labHosts) start(t *testing.T, text string, args ...string) *process {
	t.Helper()
	dir := testenv.SocketDir(t)
	p := &process{t: t, h: h, file: filepath.Join(dir, "l4lb.yaml"), socket: filepath.Join(dir, "s"), log: &rig.Log{}}
	p.write(text)
	p.run(args...)
	t.Cleanup(p.stop)
	return p
}

// write replaces the configuration in one step.
func (p *process) write(text string) {
	p.t.Helper()
	text = strings.NewReplacer("SOCKET", p.socket, "DIR", filepath.Dir(p.file)).Replace(text)
	require.NoError(p.t, os.WriteFile(p.file+".new", []byte(text), 0o600))
	require.NoError(p.t, os.Rename(p.file+".new", p.file))
}

func (p *process) run(args ...string) {
	p.t.Helper()
	bin, err := built()
	require.NoError(p.t, err)
	args = append(append(slices.Clone(p.env), bin, "run", p.file), args...)
	p.Process = rig.Start(p.t, p.h.balancer, p.log, "env", args...)
}

// stop ends the process in good order.
func (p *process) stop() {
	p.t.Helper()
	if p.Process == nil {
		return
	}
	if err := p.Stop(patience); err != nil {
		p.t.Errorf("l4lb: %v\n%v", err, p.log)
	}
	p.Process = nil
}

// kill ends it at once.
func (p *process) kill() {
	p.t.Helper()
	p.End()
	p.Process = nil
}

func (p *process) eventually(what string, f func() bool) {
	p.t.Helper()
	require.Eventually(p.t, f, patience, 30*time.Millisecond, "%s\n%v", what, p.log)
}

// l4lb runs a command in the balancer's namespace.
func (p *process) l4lb(args ...string) (out string, err error) {
	p.t.Helper()
	bin, err := built()
	require.NoError(p.t, err)
	var b []byte
	err = p.h.balancer.Do(func() error {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "L4LB_SOCKET="+p.socket)
		b, err = cmd.CombinedOutput()
		return err
	})
	return string(b), err
}

// must is l4lb of a command that succeeds.
func (p *process) must(args ...string) string {
	p.t.Helper()
	out, err := p.l4lb(args...)
	require.NoError(p.t, err, "l4lb %v: %s\n%v", args, out, p.log)
	return out
}

// status asks the running process.
func (p *process) status() *statusReply {
	p.t.Helper()
	s, err := (&client{socket: p.socket}).status(p.t.Context())
	require.NoError(p.t, err, "%v", p.log)
	return s
}

// ready waits until all nodes can be used.
func (p *process) ready() {
	p.t.Helper()
	p.eventually("all nodes usable", func() bool {
		s, err := (&client{socket: p.socket}).status(p.t.Context())
		if err != nil {
			return false
		}
		for _, f := range s.Farms {
			if f.Usable < len(f.Nodes) {
				return false
			}
		}
		return s.Ready
	})
}

func (h *labHosts) get(addr string) (string, error) { return h.getPort(addr, "80") }

func (h *labHosts) getPort(addr, port string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: h.client.DialContext}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(addr, port)+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// savedSince reports whether the state file has what was there at a moment: its writing began later.
func (p *process) savedSince(then time.Time) bool {
	f, err := os.Open(filepath.Join(filepath.Dir(p.file), "state"))
	if err != nil {
		return false
	}
	defer f.Close()
	var s saved
	require.NoError(p.t, json.NewDecoder(f).Decode(&s))
	return s.At.After(then)
}

// servesAgain waits until the process serves, and still has a node drained that was.
func (p *process) servesAgain(drained string) {
	p.t.Helper()
	p.eventually("serving again", func() bool {
		s, err := (&client{socket: p.socket}).status(p.t.Context())
		return err == nil && s.Ready
	})
	for _, f := range p.status().Farms {
		for _, n := range f.Nodes {
			require.Equal(p.t, nodeName(f.Name, n.Name) == drained, n.Asked)
		}
	}
}
