package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// delay is how a node is chosen after reading the beginning of a connection.
type delay struct {
	Read    dataplane.Read  `yaml:"read" doc:"What a client's stream begins with. nothing only keeps SYNs that no client stands behind from the nodes." default:"nothing"`
	Budget  int             `yaml:"budget" doc:"Bytes of it that are read at most." default:"3584"`
	Time    time.Duration   `yaml:"time" doc:"How long the client may take." default:"5s"`
	Rules   []*delayRule    `yaml:"rules" doc:"What is done by what was read: the first rule whose conditions all hold decides. Without a match, the service's farm serves."`
	Persist *tlsPersistence `yaml:"tls-persistence" doc:"With read tls: clients that resume a TLS session get the node that has it."`
}

type delayRule struct {
	When l7.Kind `yaml:"when,required" doc:"What is looked at."`
	Key  string  `yaml:"key" doc:"Of header and cookie: its name."`
	Is   string  `yaml:"is" doc:"What it must be; of host, url, header, cookie and server name it may begin or end with a star."`
	In   l7.Part `yaml:"in" doc:"Of text and regexp: where to search." default:"head"`
	And  *method `yaml:"and" doc:"A second condition, which must hold too."`
	Farm string  `yaml:"farm" doc:"The farm that then serves, of the same address family."`
	To   string  `yaml:"redirect" doc:"The URL the client is sent to instead."`
	Code int     `yaml:"reply" doc:"The status code the client is answered with instead."`
}

// method is a further condition of a rule.
type method struct {
	When l7.Kind `yaml:"when,required" doc:"What is looked at."`
	Key  string  `yaml:"key" doc:"Of header and cookie: its name."`
	Is   string  `yaml:"is" doc:"What it must be."`
	In   l7.Part `yaml:"in" doc:"Of text and regexp: where to search." default:"head"`
}

// conditions are all that a rule looks at.
func (r *delayRule) conditions() (first, second l7.Method) {
	first = l7.Method{Kind: r.When, Key: r.Key, Value: r.Is, In: r.In}
	if r.And != nil {
		second = l7.Method{Kind: r.And.When, Key: r.And.Key, Value: r.And.Is, In: r.And.In}
	}
	return first, second
}

type tlsPersistence struct {
	Idle     time.Duration `yaml:"idle" doc:"Time after its last use that a session is forgotten." default:"10m"`
	Sessions int           `yaml:"sessions" doc:"Most sessions remembered." default:"1048576"`
	Tickets  bool          `yaml:"tickets" doc:"Follow session tickets too, by the names of their keys; with TLS 1.3 it wants client-address, or a metric by the client's address, to learn them." default:"false"`
	Clients  bool          `yaml:"client-address" doc:"Follow the address of clients that show neither a session nor a ticket whose node is known." default:"false"`
}

// tlsFarm is what is known of a service's TLS sessions. It outlives reloads that leave its settings.
type tlsFarm struct {
	settings string
	farm     *sslpersist.Farm[steering.NodeID]
}

// validate finds what is wrong with a delay by itself.
func (d *delay) validate(f *conf.File, path string) {
	if d == nil {
		return
	}
	_, err := splice.Limits{Budget: d.Budget, Time: d.Time}.WithDefaults()
	tell(f, path, err, limitKeys)
	for i, r := range d.Rules {
		if r == nil {
			continue
		}
		at := fmt.Sprintf("%s.rules[%d]", path, i)
		first, second := r.conditions()
		for _, c := range []struct {
			path string
			l7.Method
		}{{at, first}, {at + ".and", second}} {
			m := c.Kind
			inTLS := m == l7.ServerName || m == l7.ALPN
			switch {
			case f.Faulty(c.path+".when") || f.Faulty(path+".read"):
			case m != l7.Always && (inTLS != (d.Read == dataplane.ReadTLS) || d.Read == dataplane.ReadNothing):
				f.Add(c.path+".when", "%v: with read %v there is none to look at", m, d.Read)
			case d.Read == dataplane.ReadNothing && c.path == at:
				f.Add(c.path+".when", "%v: with read nothing the service's own farm serves", m)
			}
		}
		if given := r.action(); len(given) != 1 {
			f.Add(at, "want either farm, redirect or reply")
		} else if given[0] != "farm" && d.Read == dataplane.ReadTLS {
			f.Add(at+"."+given[0], "a TLS client understands no answer in the clear: want farm")
		}
	}
	if d.Read == dataplane.ReadHTTP && len(d.Rules) == 0 && !f.Faulty(path+".rules") {
		f.Add(path+".rules", "none: want rules, to read http for")
	}
	if d.Persist != nil && d.Read != dataplane.ReadTLS && !f.Faulty(path+".read") {
		f.Add(path+".tls-persistence", "want read tls")
	}
}

// action names what a rule does.
func (r *delayRule) action() (given []string) {
	for _, x := range []struct {
		key string
		is  bool
	}{{"farm", r.Farm != ""}, {"redirect", r.To != ""}, {"reply", r.Code != 0}} {
		if x.is {
			given = append(given, x.key)
		}
	}
	return given
}

// library is the delay as the data plane wants it, which validate has nothing against. Farms of TLS sessions come from old, and go to next.
func (s *service) delay(old, next *pools) (*dataplane.Delay, error) {
	d := s.Delay
	if d == nil {
		return nil, nil
	}
	out := &dataplane.Delay{Read: d.Read, Limits: splice.Limits{Budget: d.Budget, Time: d.Time}, Farms: map[string]*steering.Pool{}}
	var errs []error
	if len(d.Rules) > 0 {
		rules := make([]l7.Rule, len(d.Rules))
		for i, r := range d.Rules {
			first, second := r.conditions()
			a := l7.Action{Farm: r.Farm, Location: r.To, Code: r.Code}
			switch {
			case r.Farm != "":
				a.Do, out.Farms[r.Farm] = l7.Farm, next.byFarm[r.Farm]
			case r.To != "":
				a.Do = l7.Redirect
			default:
				a.Do = l7.Reply
			}
			rules[i] = l7.Rule{Index: i + 1, First: first, Second: second, Action: a}
		}
		out.Farms[s.Farm] = next.byFarm[s.Farm]
		p, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Farm, Farm: s.Farm}, Budget: d.Budget}, rules...)
		if errs = append(errs, ruleFaults(err)); err == nil {
			out.Rules = p
		}
	}
	if d.Persist != nil {
		ports := s.match().DstPort
		settings := fmt.Sprint(*d.Persist, ports)
		known := old.tls[s.Name]
		if known == nil || known.settings != settings {
			set := &sslpersist.Settings[steering.NodeID]{MaxEntries: d.Persist.Sessions, TTL: d.Persist.Idle, Tickets: d.Persist.Tickets, ClientAddr: d.Persist.Clients}
			if ports.IsAny() {
				ports.Last = 65535
			}
			for p := max(1, int(ports.First)); p <= int(ports.Last); p++ {
				set.Ports = append(set.Ports, uint16(p)) //nolint:gosec // a port
			}
			farm, err := sslpersist.NewFarm(set)
			for _, e := range joined(err) {
				key, text := tlsKeys.translate(e)
				errs = append(errs, fault(strings.TrimSuffix("tls-persistence."+key, "."), "%s", text))
			}
			known = &tlsFarm{settings, farm}
		}
		next.tls[s.Name] = known
		out.Sessions = known.farm
	}
	return out, errors.Join(errs...)
}
