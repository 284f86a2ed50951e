package dataplane_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// Programs that everybody has, through a virtual address, with routers on both sides of the balancer.

// run runs a program on a host and returns what it prints.
func run(t testing.TB, host *netns.Namespace, name string, args ...string) (out string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var b []byte
	err = host.Do(func() (err error) {
		b, err = exec.CommandContext(ctx, name, args...).CombinedOutput()
		return err
	})
	return string(b), err
}

func must(t testing.TB, host *netns.Namespace, name string, args ...string) string {
	t.Helper()
	out, err := run(t, host, name, args...)
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return out
}

// daemon starts a program on a host, until the end of the test.
func daemon(t testing.TB, host *netns.Namespace, name string, args ...string) {
	t.Helper()
	c := exec.Command(name, args...)
	require.NoError(t, host.Do(c.Start))
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
}

func literal(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

func TestNetnsTools(t *testing.T) {
	tools := testenv.NeedServers(t, "iperf3", "curl", "ping", "traceroute")
	iperf, curl, ping, traceroute := tools[0], tools[1], tools[2], tools[3]
	// The same server for the connections of one client, since iperf3 has several that belong together.
	w := newWorld(t, how{routers: true, own: []netip.Addr{waddr(false, 10, 1), waddr(true, 10, 1)}, service: func(s *dataplane.Service, _ bool) { s.Mode = clienttable.EntryPerSession }})
	page := bytes.Repeat([]byte("0123456789abcdef"), 20000)
	for i, host := range w.servers {
		for _, v6 := range []bool{false, true} {
			a := waddr(v6, byte(1+i), 2)
			daemon(t, host, iperf, "-s", "-B", a.String(), "-p", "5201")
			ln, err := host.Listen(context.Background(), "tcp", netip.AddrPortFrom(a, 8000).String())
			require.NoError(t, err)
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(page) })}
			t.Cleanup(func() { s.Close() })
			go s.Serve(ln)
		}
	}
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			vip, vip3 := wvip(v6), wvip3(v6)
			family := map[bool]string{false: "-4", true: "-6"}[v6]
			for name, args := range map[string][]string{
				// More than the sockets hold: iperf3 ends when its sender has written all.
				"TCP there": {"-n", "64M"}, "TCP back": {"-R", "-n", "64M"}, "TCP, four at once": {"-P", "4", "-n", "64M"},
				"UDP there": {"-u", "-b", "10M", "-l", "1200", "-n", "1M"}, "UDP back": {"-u", "-R", "-b", "10M", "-l", "1200", "-n", "1M"},
			} {
				t.Run("iperf3 "+name, func(t *testing.T) {
					args := append([]string{"-c", vip.String(), "-p", "5201", "-J", "--connect-timeout", "10000"}, args...)
					var out string
					var err error
					for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) { // the server may not listen yet, or be busy for a moment
						out, err = run(t, w.client, iperf, args...) // which may succeed to say that the server is busy
						if err == nil && !strings.Contains(out, `"error":`) || time.Now().After(deadline) {
							break
						}
					}
					require.NoError(t, err, out)
					var got struct {
						End struct {
							Sent     struct{ Bytes float64 } `json:"sum_sent"`
							Received struct{ Bytes float64 } `json:"sum_received"`
							Sum      struct {
								Bytes, Packets float64
								Lost           float64 `json:"lost_packets"`
							}
						}
					}
					require.NoError(t, json.Unmarshal([]byte(out), &got), out)
					if strings.HasPrefix(name, "UDP") {
						require.GreaterOrEqual(t, got.End.Sum.Bytes, 1e6, out)
						require.Less(t, got.End.Sum.Lost, got.End.Sum.Packets/2, out) // a loaded machine may lose some
					} else {
						require.GreaterOrEqual(t, got.End.Sent.Bytes, 64e6, out)
						require.Greater(t, got.End.Received.Bytes, 1e6, out) // what it has at the moment of the sender's end
					}
				})
			}
			t.Run("curl", func(t *testing.T) {
				for range 3 {
					out := must(t, w.client, curl, "-gsS", "--max-time", "30", fmt.Sprintf("http://%s:8000/", literal(vip)))
					require.True(t, out == string(page), "%d bytes", len(out))
				}
			})
			t.Run("ping", func(t *testing.T) {
				full := 1472
				if v6 {
					full = 1452
				}
				for _, size := range []int{0, 8, 56, 1000, full} {
					for _, to := range []netip.Addr{vip, vip3} { // a server answers, and the balancer
						out := must(t, w.client, ping, family, "-n", "-c", "1", "-W", "10", "-M", "do", "-s", strconv.Itoa(size), to.String())
						require.Contains(t, out, " 1 received", size)
						require.NotContains(t, out, "DUP")
					}
				}
				out, err := run(t, w.client, ping, family, "-n", "-c", "1", "-W", "1", "-M", "do", "-s", strconv.Itoa(full+1), vip.String())
				require.Error(t, err, "larger than the client's own link: %s", out)
				for _, size := range []int{full + 1, 4000, 20000} {
					for _, to := range []netip.Addr{vip, vip3} {
						out := must(t, w.client, ping, family, "-n", "-c", "1", "-W", "10", "-M", "dont", "-s", strconv.Itoa(size), to.String())
						require.Contains(t, out, " 1 received", "%d bytes, in fragments", size)
					}
				}
			})
			t.Run("traceroute", func(t *testing.T) {
				// The balancer's host is one hop before the device and one behind it.
				near, lb, far := waddr(v6, 0, 1).String(), waddr(v6, 10, 1).String(), waddr(v6, 20, 2).String()
				for name, args := range map[string][]string{"UDP": nil, "ICMP": {"-I"}, "TCP": {"-T", "-p", "8000"}} {
					out := must(t, w.client, traceroute, append(args, family, "-n", "-q", "1", "-w", "10", "-m", "8", vip.String())...)
					var hops []string
					for _, l := range regexp.MustCompile(`(?m)^ *\d+  (\S+)`).FindAllStringSubmatch(out, -1) {
						hops = append(hops, l[1])
					}
					require.Equal(t, []string{near, lb, lb, far, vip.String()}, hops, "%s: %s", name, out)
				}
			})
		})
	}
}
