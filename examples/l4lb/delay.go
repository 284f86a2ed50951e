package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/splice"
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
	Tickets  bool          `yaml:"tickets" doc:"Follow session tickets too, by the names of their keys." default:"false"`
	Clients  bool          `yaml:"client-address" doc:"Follow the address of clients that show neither session nor ticket." default:"false"`
}

// tlsFarm is what is known of a service's TLS sessions. It outlives reloads that leave its settings.
type tlsFarm struct {
	settings string
	farm     *sslpersist.Farm[steering.NodeID]
}

// library is the delay as the data plane wants it. Farms of TLS sessions come from old, and go to next.
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
			for _, m := range []l7.Method{first, second} {
				inTLS := m.Kind == l7.ServerName || m.Kind == l7.ALPN
				if m.Kind != l7.Always && (inTLS != (d.Read == dataplane.ReadTLS) || d.Read == dataplane.ReadNothing) {
					errs = append(errs, fmt.Errorf("rule %d: when %v: with read %v there is none to look at", i, m.Kind, d.Read))
				}
			}
			if d.Read == dataplane.ReadNothing && first.Kind == l7.Always {
				errs = append(errs, fmt.Errorf("rule %d: when always: with read nothing the service's own farm serves", i))
			}
			a := l7.Action{Farm: r.Farm, Location: r.To, Code: r.Code}
			switch {
			case r.Farm != "" && r.To == "" && r.Code == 0:
				a.Do = l7.Farm
				if out.Farms[r.Farm] = next.byFarm[r.Farm]; next.byFarm[r.Farm] == nil {
					errs = append(errs, fmt.Errorf("rule %d: there is no farm %q", i, r.Farm))
				}
			case r.To != "" && r.Farm == "" && r.Code == 0:
				a.Do = l7.Redirect
			case r.Code != 0 && r.Farm == "" && r.To == "":
				a.Do = l7.Reply
			default:
				errs = append(errs, fmt.Errorf("rule %d: want one of farm, redirect and reply", i))
			}
			rules[i] = l7.Rule{Index: i + 1, First: first, Second: second, Action: a}
		}
		out.Farms[s.Farm] = next.byFarm[s.Farm]
		p, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Farm, Farm: s.Farm}, Budget: d.Budget}, rules...)
		if errs = append(errs, err); err == nil {
			out.Rules = p
		}
	}
	if d.Persist != nil {
		settings := fmt.Sprint(*d.Persist, s.Port)
		known := old.tls[s.Name]
		if known == nil || known.settings != settings {
			set := &sslpersist.Settings[steering.NodeID]{MaxEntries: d.Persist.Sessions, TTL: d.Persist.Idle, Tickets: d.Persist.Tickets, ClientAddr: d.Persist.Clients}
			if p := s.match().DstPort; p.First != 0 && p.First == p.Last {
				set.Ports = []uint16{p.First}
			}
			farm, err := sslpersist.NewFarm(set)
			if err != nil {
				errs = append(errs, err)
			}
			known = &tlsFarm{settings, farm}
		}
		next.tls[s.Name] = known
		out.Sessions = known.farm
	}
	return out, errors.Join(errs...)
}
