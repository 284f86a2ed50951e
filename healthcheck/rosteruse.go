package healthcheck

import (
	"fmt"
	"iter"
	"slices"
	"sort"
	"time"
)

// port returns a port. r.mu is held.
func (r *Roster) port(server, port string) (*rport, error) {
	if s := r.servers[server]; s != nil {
		if p := s.ports[port]; p != nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w %q", ErrUnknownPort, server+"/"+port)
}

// FailPassive fails a port, since the data plane found it dead: say, when
// [SYNCount.SYN] returned true. The port's active check is repeated at once, and
// the port comes back when that passes and the hold-down, if any, is over. One that
// has no check comes back at once, or when the hold-down is over.
func (r *Roster) FailPassive(server, port string) error {
	r.mu.Lock()
	p, err := r.port(server, port)
	if err == nil {
		p.passive = time.Now()
		r.look(p)
		for _, id := range r.idsOf(p) {
			_ = r.m.Trigger(id) // it exists
		}
	}
	r.mu.Unlock()
	r.deliver()
	return err
}

// SYNs returns the passive check of a port, for the data plane to count in; nil
// if there is no such port. It is the same for as long as the port is there.
func (r *Roster) SYNs(server, port string) *SYNCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, err := r.port(server, port); err == nil {
		return p.syns
	}
	return nil
}

// Traffic returns what the data plane notes the server's traffic in; nil, which
// may be used, if there is no such server.
func (r *Roster) Traffic(server string) *Traffic {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.servers[server]; s != nil {
		return &s.traffic
	}
	return nil
}

// SetServerAdmin says what the administrator wants of a server.
func (r *Roster) SetServerAdmin(server string, a Admin) error {
	if _, err := a.MarshalText(); err != nil {
		return err
	}
	r.mu.Lock()
	s := r.servers[server]
	if s == nil {
		r.mu.Unlock()
		return fmt.Errorf("%w %q", ErrUnknownPort, server)
	}
	s.admin = a
	r.lookServer(s)
	r.mu.Unlock()
	r.deliver()
	return nil
}

// SetPortAdmin says what the administrator wants of a port. The stricter of the
// server's and the port's holds.
func (r *Roster) SetPortAdmin(server, port string, a Admin) error {
	if _, err := a.MarshalText(); err != nil {
		return err
	}
	r.mu.Lock()
	p, err := r.port(server, port)
	if err == nil {
		p.admin = a
		r.look(p)
	}
	r.mu.Unlock()
	r.deliver()
	return err
}

// status is that of a port, with why its check, or its server's, says nothing. r.mu is held.
func (r *Roster) status(p *rport) PortStatus {
	st := p.status()
	switch {
	case st.Usable:
	case !p.server.state.KeepsSessions():
		st.Err = p.server.err
	case st.Err == nil && (p.by.kind == byElement || p.by.kind == byCheck):
		for _, id := range r.idsOf(p) {
			if check, ok := r.m.Status(id); ok && check.Verdict == Inconclusive {
				st.Err = check.Err
			}
		}
	}
	return st
}

// Port returns the status of a port.
func (r *Roster) Port(server, port string) (PortStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.port(server, port)
	if err != nil {
		return PortStatus{}, false
	}
	return r.status(p), true
}

// Server returns the status of a server.
func (r *Roster) Server(server string) (ServerStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.servers[server]
	if s == nil {
		return ServerStatus{}, false
	}
	return s.status(), true
}

// Ports returns the statuses of all ports, sorted by server and name.
func (r *Roster) Ports() iter.Seq[PortStatus] {
	r.mu.Lock()
	var all []PortStatus
	for _, s := range r.servers {
		for _, p := range s.ports {
			all = append(all, r.status(p))
		}
	}
	r.mu.Unlock()
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return a.Server < b.Server || a.Server == b.Server && a.Port < b.Port
	})
	return slices.Values(all)
}

// Servers returns the statuses of all servers, sorted by name.
func (r *Roster) Servers() iter.Seq[ServerStatus] {
	r.mu.Lock()
	var all []ServerStatus
	for _, s := range r.servers {
		all = append(all, s.status())
	}
	r.mu.Unlock()
	sort.Slice(all, func(i, j int) bool { return all[i].Server < all[j].Server })
	return slices.Values(all)
}

// Explain says in one line why a port is in its state.
func (r *Roster) Explain(server, port string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.port(server, port)
	if err != nil {
		return "", err
	}
	st := r.status(p)
	text := fmt.Sprintf("%s/%s is %v by %s", server, port, st.State, st.By)
	if p.by.kind == byPolicy || p.by.kind == byVirtualPolicy {
		x, _ := r.policies.Explain(p.by.name, r.truth)
		text += "; " + x.String()
	} else if st.Err != nil {
		text += "; " + st.Err.Error()
	}
	if !p.server.state.Usable() {
		text += "; its server is " + p.server.state.String()
	}
	if st.Admin != InService {
		text += "; it is " + st.Admin.String()
	}
	if now := time.Now(); now.Before(st.HoldUntil) {
		text += "; held down for another " + st.HoldUntil.Sub(now).Round(time.Second).String()
	}
	return text, nil
}
