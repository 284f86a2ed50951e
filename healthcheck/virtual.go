package healthcheck

import (
	"fmt"
	"iter"
	"slices"
	"sort"
	"time"
)

// Virtual is a virtual server, as far as its health goes, as configured: it may
// answer while enough of the servers behind it are usable. It is plain data; a
// [Roster] copies it.
type Virtual struct {
	// Name is unique within a Roster. Required.
	Name string
	// Members are the ports of real servers that are bound to it. Required. A server
	// may be there with several ports; it is usable if one of them is.
	Members []Member
	// MinimumServers is how many servers must be usable: below that the virtual
	// server is silent. Default 1; at most as many as there are.
	MinimumServers int
}

// Member names a port of a real server.
type Member struct {
	Server string `json:"server"` // its name
	Port   string `json:"port"`   // see Port.Name
}

// VirtualStatus is a snapshot of a virtual server of a [Roster]. It is a plain
// value.
type VirtualStatus struct {
	Name string `json:"name"` // of the virtual server
	// Answers: enough servers are usable.
	Answers bool `json:"answers"`
	// Since is when Answers became what it is; the zero time if it never changed.
	Since time.Time `json:"since,omitzero"`
	// Usable servers there are of Servers, and Minimum there must be.
	Usable  int `json:"usable"`
	Servers int `json:"servers"`
	Minimum int `json:"minimum"`
}

// rvirtual is a virtual server in a Roster, guarded by the Roster's lock.
type rvirtual struct {
	conf    Virtual
	servers int
	up      map[*rserver]int // usable members of the servers that have any
	usable  int
	answers bool
	since   time.Time
}

func (v *Virtual) validate(ports map[Member]bool) (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("healthcheck: virtual server %q: %w", v.Name, fmt.Errorf(format, args...)))
	}
	if v.Name == "" {
		bad(`Name "", want a name`)
	}
	if len(v.Members) == 0 {
		bad("Members none, want at least one port of a server")
	}
	servers := map[string]bool{}
	seen := map[Member]bool{}
	for i, m := range v.Members {
		servers[m.Server] = true
		if !ports[m] {
			bad("Members[%d] %q: %w", i, m.Server+"/"+m.Port, ErrUnknownPort)
		}
		if seen[m] {
			bad("Members[%d] %q: listed twice, want it once", i, m.Server+"/"+m.Port)
		}
		seen[m] = true
	}
	if v.MinimumServers < 0 || v.MinimumServers > len(servers) {
		bad("MinimumServers %d, want 1 to %d, or 0 for 1", v.MinimumServers, len(servers))
	}
	return errs
}

// enrol replaces the virtual servers. Those whose names stay keep what they are.
func (r *Roster) enrol(virtuals []Virtual) {
	old := r.virtuals
	r.virtuals = make(map[string]*rvirtual, len(virtuals))
	for _, s := range r.servers {
		for _, p := range s.ports {
			p.virtuals = nil
		}
	}
	for _, conf := range virtuals {
		v := old[conf.Name]
		if v == nil {
			v = new(rvirtual)
		}
		conf.Members = slices.Clone(conf.Members)
		v.conf, v.up = conf, map[*rserver]int{}
		servers := map[string]bool{}
		for _, m := range conf.Members {
			p := r.servers[m.Server].ports[m.Port] // validated
			p.virtuals = append(p.virtuals, v)
			if p.usable {
				v.up[p.server]++
			}
			servers[m.Server] = true
		}
		v.servers = len(servers)
		r.virtuals[conf.Name] = v
	}
}

// count takes in that a member has become usable, or is no longer.
func (v *rvirtual) count(p *rport) {
	if p.usable {
		v.up[p.server]++
	} else if v.up[p.server]--; v.up[p.server] <= 0 {
		delete(v.up, p.server)
	}
}

// lookVirtual sees whether v has enough usable servers, and queues what is to be told.
func (r *Roster) lookVirtual(v *rvirtual) {
	v.usable = len(v.up)
	answers := v.usable >= max(v.conf.MinimumServers, 1) // as MinimumServers says it
	if answers == v.answers {
		return
	}
	v.answers, v.since = answers, time.Now()
	if f := r.cfg.OnVirtual; f != nil {
		st := v.status()
		r.out = append(r.out, func() { f(st) })
	}
}

func (v *rvirtual) status() VirtualStatus {
	return VirtualStatus{
		Name: v.conf.Name, Answers: v.answers, Since: v.since, Usable: v.usable, Servers: v.servers, Minimum: max(v.conf.MinimumServers, 1),
	}
}

// Virtual returns the status of a virtual server.
func (r *Roster) Virtual(name string) (VirtualStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.virtuals[name]
	if v == nil {
		return VirtualStatus{}, false
	}
	return v.status(), true
}

// Virtuals returns the statuses of all virtual servers, sorted by name.
func (r *Roster) Virtuals() iter.Seq[VirtualStatus] {
	r.mu.Lock()
	all := make([]VirtualStatus, 0, len(r.virtuals))
	for _, v := range r.virtuals {
		all = append(all, v.status())
	}
	r.mu.Unlock()
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return slices.Values(all)
}
