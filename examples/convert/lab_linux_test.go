package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

const patience = 40 * time.Second

// lab is a client, a balancer and three servers, each a namespace of its own. Servers say their number over TCP and UDP on port 8080, and are
// asked for their health over HTTP on port 8081.
type lab struct {
	client, balancer *netns.Namespace
	servers          [3]*netns.Namespace
	sick             [3]atomic.Bool
	dir              string
}

func newLab(t *testing.T) *lab {
	testenv.NeedNetns(t)
	x := &lab{dir: t.TempDir()}
	rig.Hosts(t, &x.client, &x.balancer, &x.servers[0], &x.servers[1], &x.servers[2])
	cable := func(ns *netns.Namespace, name string, number int) {
		rig.Cable{Hub: x.balancer, Host: ns, Name: name, V4: "10.9.%d.%d/24", V6: "fd09:%d::%d/64", Number: number}.Plug(t)
	}
	cable(x.client, "c0", 0)
	require.NoError(t, x.balancer.Router())
	for i, s := range x.servers {
		cable(s, fmt.Sprintf("e%d", i+1), i+1)
		l, err := s.Listen(t.Context(), "tcp", ":8080")
		require.NoError(t, err)
		testenv.Accept(t, l, func(c net.Conn) {
			fmt.Fprintf(c, "s%d\n", i+1)
			_, _ = io.Copy(io.Discard, c) // until the client has enough
		})
		u, err := s.ListenPacket(t.Context(), "udp", ":8080")
		require.NoError(t, err)
		t.Cleanup(func() { u.Close() })
		go func() {
			b := make([]byte, 1500)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo(fmt.Appendf(nil, "s%d\n", i+1), from)
			}
		}()
		h, err := s.Listen(t.Context(), "tcp", ":8081")
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if x.sick[i].Load() || r.URL.Path != "/health" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})}
		go func() { _ = srv.Serve(h) }()
		t.Cleanup(func() { srv.Close() })
	}
	return x
}

// ask makes a connection, or sends a datagram, and returns who has answered; "" for nobody.
func (x *lab) ask(t *testing.T, network, address string) string {
	c, err := x.client.DialWith(t.Context(), &net.Dialer{Timeout: 5 * time.Second}, network, address)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if network == "udp" {
		_, _ = io.WriteString(c, "who?")
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// count counts who answers of n.
func (x *lab) count(t *testing.T, n int, network, address string) map[string]int {
	t.Helper()
	served := map[string]int{}
	for range n {
		served[x.ask(t, network, address)]++
	}
	return served
}

// eventually asks again and again until what is served is right.
func (x *lab) eventually(t *testing.T, n int, network, address string, right func(served map[string]int) bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		served := x.count(t, n, network, address)
		if right(served) {
			return
		}
		require.Truef(t, time.Now().Before(deadline), "%s %s: served by %v", network, address, served)
		time.Sleep(50 * time.Millisecond)
	}
}

// only waits until nobody but a server answers.
func (x *lab) only(t *testing.T, network, address, server string) {
	t.Helper()
	x.eventually(t, 6, network, address, func(served map[string]int) bool { return served[server] == 6 })
}

// shares waits until each of the servers has its turn as often as it is named.
func (x *lab) shares(t *testing.T, network, address string, servers ...string) {
	t.Helper()
	want := map[string]int{}
	for _, s := range servers {
		want[s] += 5
	}
	x.eventually(t, 5*len(servers), network, address, func(served map[string]int) bool { return maps.Equal(served, want) })
}

func (x *lab) start(t *testing.T, says, name string, args ...string) *rig.Process {
	t.Helper()
	p := rig.Start(t, x.balancer, nil, name, args...)
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Logf("%s:\n%v", name, p.Log)
		}
	})
	require.Eventuallyf(t, func() bool { return strings.Contains(p.Log.String(), says) }, patience, 20*time.Millisecond, "%s does not say %q:\n%v", name, says, p.Log)
	return p
}

// balance runs l4lb with what convert makes, unchanged but for the admin socket, of which a machine has one.
func (x *lab) balance(t *testing.T, args ...string) *rig.Process {
	t.Helper()
	status, out, errs := run(t, args...)
	require.Zerof(t, status, "%s", errs)
	name := filepath.Join(x.dir, "l4lb.yaml")
	require.NoError(t, os.WriteFile(name, []byte("admin: {socket: none}\n"+out), 0o600))
	return x.start(t, "balancing", l4lb(t), "run", name)
}

func (x *lab) file(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(x.dir, name)
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// One configuration, run by HAProxy and then, converted, by l4lb: connections go where they went.
func TestMovingFromHAProxy(t *testing.T) {
	haproxy := testenv.NeedServers(t, "haproxy")[0]
	x := newLab(t)
	name := x.file(t, "haproxy.cfg", `global
    maxconn 1000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
frontend web
    bind 10.9.100.1:80
    default_backend servers
backend servers
    balance roundrobin
    option httpchk GET /health
    default-server inter 200ms fall 2 rise 1 port 8081
    server one 10.9.1.2:8080 check weight 1
    server two 10.9.2.2:8080 check weight 2
    server spare 10.9.3.2:8080 check backup
listen six
    bind fd09:100::1:80
    balance source
    server one fd09:1::2:8080
    server two fd09:2::2:8080
`)
	behaves := func(who string) {
		t.Helper()
		x.shares(t, "tcp", "10.9.100.1:80", "s1", "s2", "s2")
		served := x.count(t, 6, "tcp", "[fd09:100::1]:80")
		require.Truef(t, len(served) == 1 && served[""] == 0, "%s: by the client's address: %v", who, served)
		x.sick[1].Store(true)
		x.only(t, "tcp", "10.9.100.1:80", "s1")
		x.sick[0].Store(true)
		x.only(t, "tcp", "10.9.100.1:80", "s3")
		x.sick[0].Store(false)
		x.sick[1].Store(false)
		x.shares(t, "tcp", "10.9.100.1:80", "s1", "s2", "s2")
	}
	own := "ip addr %[1]s 10.9.100.1/32 dev lo; ip addr %[1]s fd09:100::1/128 dev lo"
	rig.Shell(t, x.balancer, fmt.Sprintf(own, "add"))
	ha := rig.Start(t, x.balancer, nil, haproxy, "-db", "-f", name)
	t.Cleanup(ha.End)
	behaves("HAProxy")
	ha.End()
	rig.Shell(t, x.balancer, fmt.Sprintf(own, "del"))

	p := x.balance(t, "haproxy", "-interfaces", "e1,e2,e3", name)
	behaves("l4lb")
	require.NoError(t, p.Stop(patience))

	// Servers that have another way out: full NAT brings answers back.
	for i, s := range x.servers {
		rig.Shell(t, s, "ip route del default; ip -6 route del default")
		rig.Shell(t, s, fmt.Sprintf("ip route add 10.9.200.0/24 via 10.9.%d.1; ip -6 route add fd09:200::/64 via fd09:%d::1", i+1, i+1))
	}
	p = x.balance(t, "haproxy", "-interfaces", "e1,e2,e3", "-local", "10.9.200.1,fd09:200::1", name)
	behaves("l4lb with full NAT")
	require.NoError(t, p.Stop(patience))
}

// A file that keepalived itself finds right, and what the kernel would do by it, done by l4lb.
func TestMovingFromKeepalived(t *testing.T) {
	keepalived := testenv.NeedServers(t, "keepalived")[0]
	x := newLab(t)
	name := x.file(t, "keepalived.conf", `global_defs {
    router_id lab
}
virtual_server_group both {
    10.9.100.1 80
    10.9.100.2 80
}
virtual_server group both {
    delay_loop 1
    lb_algo wrr
    lb_kind NAT
    protocol TCP
    sorry_server 10.9.3.2 8080
    real_server 10.9.1.2 8080 {
        weight 2
        HTTP_GET {
            url {
                path /health
                status_code 200
            }
            connect_port 8081
            connect_timeout 3
            retry 1
        }
    }
    real_server 10.9.2.2 8080 {
        weight 1
        HTTP_GET {
            url {
                path /health
                status_code 200
            }
            connect_port 8081
            connect_timeout 3
            retry 1
        }
    }
}
virtual_server fd09:100::1 53 {
    lb_algo rr
    lb_kind NAT
    protocol UDP
    real_server fd09:1::2 8080 {
        weight 1
    }
    real_server fd09:2::2 8080 {
        weight 1
    }
}
`)
	out, err := exec.Command(keepalived, "--config-test", "--use-file", name).CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	p := x.balance(t, "keepalived", "-interfaces", "e1,e2,e3", name)
	for _, vip := range []string{"10.9.100.1:80", "10.9.100.2:80"} {
		x.shares(t, "tcp", vip, "s1", "s1", "s2")
	}
	x.shares(t, "udp", "[fd09:100::1]:53", "s1", "s2")
	x.sick[0].Store(true)
	x.only(t, "tcp", "10.9.100.1:80", "s2")
	x.sick[1].Store(true)
	x.only(t, "tcp", "10.9.100.2:80", "s3") // sorry
	x.sick[0].Store(false)
	x.only(t, "tcp", "10.9.100.1:80", "s1")
	require.NoError(t, p.Stop(patience))
}

// What ipvsadm -S -n prints of NAT services, done by l4lb: weights, and clients that stay.
func TestMovingFromIPVS(t *testing.T) {
	x := newLab(t)
	name := x.file(t, "rules", `-A -t 10.9.100.1:80 -s wrr
-a -t 10.9.100.1:80 -r 10.9.1.2:8080 -m -w 1
-a -t 10.9.100.1:80 -r 10.9.2.2:8080 -m -w 2
-a -t 10.9.100.1:80 -r 10.9.3.2:8080 -m -w 0
-A -t [fd09:100::1]:80 -s rr -p 300
-a -t [fd09:100::1]:80 -r [fd09:1::2]:8080 -m -w 1
-a -t [fd09:100::1]:80 -r [fd09:2::2]:8080 -m -w 1
-A -u 10.9.100.1:53 -s rr
-a -u 10.9.100.1:53 -r 10.9.3.2:8080 -m -w 1
`)
	p := x.balance(t, "ipvsadm", "-interfaces", "e1,e2,e3", name)
	x.shares(t, "tcp", "10.9.100.1:80", "s1", "s2", "s2")
	x.eventually(t, 6, "tcp", "[fd09:100::1]:80", func(served map[string]int) bool { return len(served) == 1 && served[""] == 0 })
	x.only(t, "udp", "10.9.100.1:53", "s3")
	require.NoError(t, p.Stop(patience))
}
