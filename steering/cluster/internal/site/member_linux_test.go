package site

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/intercept"
)

// child says that this process is a member, and how it is configured.
const child = "LBPRIM_SITE_MEMBER"

func TestMain(m *testing.M) {
	if text := os.Getenv(child); text != "" {
		if err := beMember(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// memberConfig is what a member is told when it starts.
type memberConfig struct {
	Node     string
	Bind     netip.AddrPort
	Join     []netip.AddrPort
	Topology cluster.Topology
	Members  []cluster.Peer
	Forward  dataplane.Forward
	Nodes    [2][]netip.Addr // IPv4, IPv6
	Own      []netip.Addr    // of the balancer, for tunnels
	Path     *pathConfig     // not nil: the member stands in the path of traffic, without services
}

// pathConfig is that of a member in the path.
type pathConfig struct {
	Allow bool
	Nodes []intercept.Node
	Rules []intercept.Rule
	InBy  []intercept.InPathRule
	Rows  []intercept.Row
}

// What a member says, a line each: "members a b c", "state steady", and an answer in JSON to each line it is told.
type answer struct {
	Members   []string
	State     string
	Cluster   cluster.Stats
	Plane     dataplane.Stats
	Drops     map[string]uint64
	Sessions  map[string]string // client to node
	Duplicate int
}

const (
	key         = "a key for tests, not for use"
	port        = 7
	httpPort    = 80
	nodeKey     = 77 // of GRE to nodes, and to balancers
	relayKey    = 78
	maxSessions = 1 << 13
)

func vip(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8::80")
	}
	return netip.MustParseAddr("192.0.2.80")
}

// policies are the services of a member: one a family.
func policies(c *memberConfig) (*policy.Table[*dataplane.Service], error) {
	ids := new(steering.IDs)
	var rules []policy.Rule[*dataplane.Service]
	for _, v6 := range []bool{false, true} {
		var nodes []steering.Node
		for i, a := range c.Nodes[family(v6)] {
			nodes = append(nodes, steering.Node{Name: fmt.Sprintf("server%d", i), Addr: netip.AddrPortFrom(a, 0)})
		}
		pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, IDs: ids}, nodes...)
		if err != nil {
			return nil, err
		}
		name := []string{"echo4", "echo6"}[family(v6)]
		rules = append(rules, policy.Rule[*dataplane.Service]{
			Name: name, Value: &dataplane.Service{Name: name, Pool: pool, Forward: c.Forward},
			Match: policy.Match{Dst: netip.PrefixFrom(vip(v6), vip(v6).BitLen()), Protocol: policy.TCP, DstPort: policy.Port(port)},
		})
		delayed, err := delayedService([]string{"http4", "http6"}[family(v6)], ids, nodes)
		if err != nil {
			return nil, err
		}
		rules = append(rules, policy.Rule[*dataplane.Service]{
			Name: delayed.Name, Value: delayed,
			Match: policy.Match{Dst: netip.PrefixFrom(vip(v6), vip(v6).BitLen()), Protocol: policy.TCP, DstPort: policy.Port(httpPort)},
		})
	}
	return policy.Compile(nil, rules...)
}

// delayedService has each request judged: those for /0, /1 and so on go to the server of that number.
func delayedService(name string, ids *steering.IDs, nodes []steering.Node) (*dataplane.Service, error) {
	pool, err := steering.NewPool(&steering.Config{IDs: ids}, nodes...)
	if err != nil {
		return nil, err
	}
	farms := map[string]*steering.Pool{}
	var rules []l7.Rule
	for i, n := range nodes {
		farm := fmt.Sprint("farm", i)
		if farms[farm], err = steering.NewPool(&steering.Config{IDs: ids}, n); err != nil {
			return nil, err
		}
		rules = append(rules, l7.Rule{Index: i + 1, First: l7.Method{Kind: l7.PathPrefix, Value: fmt.Sprint("/", i)}, Action: l7.Action{Do: l7.Farm, Farm: farm}})
	}
	l, err := l7.Compile(&l7.Config{Mode: l7.Maintain}, rules...)
	if err != nil {
		return nil, err
	}
	return &dataplane.Service{Name: name, Pool: pool, Delay: &dataplane.Delay{Read: dataplane.ReadHTTP, Rules: l, Farms: farms}}, nil
}

// inPath is the plane of a member in the path.
func (c *memberConfig) inPath() (*dataplane.Intercept, error) {
	x := c.Path
	e, err := intercept.New(&intercept.Config{AllowFailure: x.Allow, Nodes: x.Nodes, Rules: x.Rules, InPath: x.InBy, Services: x.Rows})
	if err != nil {
		return nil, err
	}
	for id := range e.All() {
		e.SetUp(id, true)
	}
	return &dataplane.Intercept{Engine: e, Tunnel: dataplane.Tunnel{Kind: dataplane.GRE, Key: nodeKey}}, nil
}

// beMember is a balancer: it lives until its parent is gone.
func beMember(text string, in io.Reader, out io.Writer) error {
	var conf memberConfig
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return err
	}
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	pc := dataplane.Config{MaxSessions: maxSessions, CookieSecret: []byte("0123456789abcdef"), Addrs: conf.Own}
	tc := tun.Config{Divert: []string{"eth0"}}
	for _, a := range conf.Own {
		tc.Routes = append(tc.Routes, netip.PrefixFrom(a, a.BitLen()))
	}
	onState := func(intercept.ClusterState) {}
	if conf.Path != nil {
		x, err := conf.inPath()
		if err != nil {
			return err
		}
		pc.Intercept, onState = x, x.Engine.SetCluster
		tc.Divert = append(tc.Divert, "eth1")
	} else {
		table, err := policies(&conf)
		if err != nil {
			return err
		}
		pc.Policies = table
		pc.Relay = &dataplane.Relay{Key: relayKey, From: []netip.Prefix{netip.PrefixFrom(addr(false, ownNet, 0), 24), netip.PrefixFrom(addr(true, ownNet, 0), 64)}}
		tc.Routes = append(tc.Routes, netip.PrefixFrom(vip(false), 32), netip.PrefixFrom(vip(true), 128))
	}
	c, err := cluster.New(&cluster.Config{
		Name: "site", Node: conf.Node, Bind: conf.Bind, Join: conf.Join, Keys: [][]byte{[]byte(key)}, Topology: conf.Topology, Members: conf.Members,
		AllowFailure: conf.Path != nil && conf.Path.Allow,
		OnMembers:    func(up []string) { say("members %s", strings.Join(up, " ")) },
		OnState: func(s intercept.ClusterState) {
			onState(s)
			say("state %v", s)
		},
	})
	if err != nil {
		return err
	}
	dev, err := tun.Open(&tc)
	if err != nil {
		return err
	}
	pc.Devices, pc.Peers = []dataplane.Device{dev}, c
	p, err := dataplane.New(&pc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	wg.Go(func() { _ = c.Run(ctx) })
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			failed <- err
		}
	})
	say("ready")
	go func() {
		for s := bufio.NewScanner(in); s.Scan(); {
			b, err := json.Marshal(look(c, p))
			if err != nil {
				b = []byte("null")
			}
			say("%s", b)
		}
		failed <- nil
	}()
	err = <-failed
	cancel()
	wg.Wait()
	_ = p.Close()
	return err
}

func look(c *cluster.Cluster, p *dataplane.Plane) (a answer) {
	a = answer{Members: c.Members(), State: c.State().String(), Cluster: c.Stats(), Plane: p.Stats(), Drops: map[string]uint64{}, Sessions: map[string]string{}}
	for r, n := range p.Drops() {
		a.Drops[r.String()] = n
	}
	for s := range p.Sessions() {
		if a.Sessions[s.Client.String()] != "" {
			a.Duplicate++
		}
		a.Sessions[s.Client.String()] = s.NodeName
	}
	return a
}

// process is a member as its parent sees it.
type process struct {
	name    string
	stdin   io.WriteCloser
	kill    func()
	signal  func(os.Signal) error
	answers chan answer

	mu      sync.Mutex
	members string
	since   time.Time // when that was said
	state   string
	log     strings.Builder
	ready   chan struct{}
}

// read takes what a member says.
func (p *process) read(out io.Reader) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		line := s.Text()
		kind, rest, _ := strings.Cut(line, " ")
		p.mu.Lock()
		switch {
		case line == "ready":
			close(p.ready)
		case kind == "members":
			p.members, p.since = rest, time.Now()
		case kind == "state":
			p.state = rest
		case strings.HasPrefix(line, "{"):
			var a answer
			if err := json.Unmarshal([]byte(line), &a); err == nil {
				p.answers <- a
			}
		default:
			p.log.WriteString(line + "\n")
		}
		p.mu.Unlock()
	}
}

func (p *process) says() (members, state string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.members, p.state, p.since
}

// look asks the member how it is.
func (p *process) look(t *testing.T) answer {
	t.Helper()
	if _, err := fmt.Fprintln(p.stdin, "look"); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	select {
	case a := <-p.answers:
		return a
	case <-time.After(patience):
		t.Fatalf("%s does not answer", p.name)
	}
	return answer{}
}

// family is 0 for IPv4 and 1 for IPv6.
func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}
