package healthcheck

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// ErrUnresolved is wrapped by the error of a probe that could not be sent, since
// the target's link-layer address is not known. It makes the difference between
// a server that is [Enabled] and one that is [Testing].
var ErrUnresolved = errors.New("healthcheck: link-layer address not resolved")

// Admin is what an administrator wants of a server or a port. The zero Admin is
// [InService].
type Admin uint8

const (
	InService Admin = iota // may have sessions
	// Draining: graceful shutdown, existing sessions only.
	Draining
	// OutOfService: disabled. Its checks go on.
	OutOfService
)

var adminNames = enum.Of[Admin]("healthcheck: admin", "in-service", "draining", "out-of-service")

// String returns the name of a.
func (a Admin) String() string { return adminNames.String(a) }

// AppendText implements [encoding.TextAppender].
func (a Admin) AppendText(b []byte) ([]byte, error) { return adminNames.Append(b, a) }

// MarshalText implements [encoding.TextMarshaler].
func (a Admin) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Admin) UnmarshalText(text []byte) error { return adminNames.Parse(a, text) }

// rserver is a server in a Roster. All of it is guarded by the Roster's lock, but
// for traffic.
type rserver struct {
	conf    Server
	ports   map[string]*rport
	state   State
	since   time.Time
	ramp    time.Time
	admin   Admin
	agent   AgentReport // what the agent said last, in sum
	told    bool        // by the agent
	was     Admin       // effective at the last look
	silent  bool        // suspect for silence
	err     error       // of the last failed echo
	traffic Traffic
}

// effective is what administrator and agent together want of the server.
func (s *rserver) effective() Admin {
	a := s.admin
	switch s.agent.Admin {
	case AgentDrain:
		a = max(a, Draining)
	case AgentMaint:
		a = OutOfService
	}
	return a
}

// step applies e, and reports whether the state changed.
func (s *rserver) step(e Event, now time.Time) bool {
	to := NextServer(s.state, e)
	if to == s.state {
		return false
	}
	if to.Usable() && s.state == Failed {
		s.ramp = now
	}
	if to != Suspect {
		s.silent = false
	}
	s.state, s.since = to, now
	return true
}

// rise is the event of a pass that is enough.
func rise(a Admin) Event {
	if a == Draining {
		return RiseDraining
	}
	return Rise
}

// echoed turns a result of the echo check into the event it means to the server.
func (s *rserver) echoed(r Result, check State) Event {
	switch {
	case r.Verdict == Fail:
		s.err = r.Err
		if check == Failed && s.state != Testing && s.state != Enabled {
			return Fall
		}
		if errors.Is(r.Err, ErrUnresolved) || errors.Is(r.Err, syscall.EHOSTUNREACH) {
			return Unresolved
		}
		if s.state == Enabled {
			return Resolved
		}
		return FailOnce
	case r.Verdict.OK():
		s.err = nil
		s.traffic.Heard()
		if check.Usable() {
			return rise(s.effective())
		}
		return PassOnce
	case s.state == Enabled || s.state == Testing:
		s.err = r.Err // nothing else is known
	}
	return NoEvent
}

// rport is a port in a Roster, guarded by the Roster's lock.
type rport struct {
	conf   Port
	server *rserver
	by     attachment
	check  *bringUpState
	syns   *SYNCount

	virtuals []*rvirtual // that it is a member of

	state     State
	since     time.Time
	ramp      time.Time
	admin     Admin
	was       Admin     // effective at the last look
	usable    bool      // at the last look
	wasDown   bool      // has failed, so that the hold-down applies
	goodSince time.Time // zero: not good
	passive   time.Time // failed by the passive check then; zero: not, or the active check passed since
	err       error     // why it is down
}

func (p *rport) target() netip.AddrPort { return netip.AddrPortFrom(p.server.conf.Addr, p.conf.Port) }

// input is what a port depends on besides its own past.
type input struct {
	now     time.Time
	truth   Truth // of what decides about the port
	suspect bool  // that is suspect
	err     error // why it is not up
}

// update looks at the port anew.
func (p *rport) update(in input) {
	s := p.server
	admin := max(p.admin, s.effective())
	if p.conf.Unbound {
		p.step(Unbind, in.now)
	} else {
		p.step(Bind, in.now)
	}
	serverUp := s.state.KeepsSessions()
	if serverUp {
		p.step(ServerUp, in.now)
	} else {
		p.step(ServerDown, in.now)
	}
	// An agent's word is an AND: down fells, up revives nobody.
	agentDown := s.agent.Verdict == Fail
	good := serverUp && in.truth == IsUp && !in.suspect && !agentDown && p.passive.IsZero()
	if !good {
		p.goodSince = time.Time{}
	} else if p.goodSince.IsZero() {
		p.goodSince = in.now
	}
	p.err = in.err
	switch {
	case !serverUp:
		p.err = s.err
	case !p.passive.IsZero():
		p.err = p.syns.Result(p.target()).Err
		p.step(Fall, in.now)
	case agentDown:
		p.err = s.agent.Result().Err
		p.step(Fall, in.now)
	case in.truth == IsDown:
		p.step(Fall, in.now)
	case in.truth == IsUp && in.suspect:
		p.step(FailOnce, in.now)
	case good && p.state.KeepsSessions():
		p.step(PassOnce, in.now)
	case good && !in.now.Before(p.holdUntil()):
		p.step(rise(admin), in.now)
	}
	// What is out of service keeps its state, and is merely not used.
	if admin == Draining {
		p.step(Shutdown, in.now)
	} else {
		p.step(Enable, in.now)
	}
	if admin == InService && p.was != InService && p.state.Usable() {
		p.ramp = in.now // after maintenance
	}
	p.was = admin
	p.usable = p.state.Usable() && admin == InService
}

func (p *rport) step(e Event, now time.Time) {
	to := NextPort(p.state, e)
	if to == Failed {
		p.wasDown = true
	}
	if to == p.state {
		return
	}
	if to.Usable() && p.state == Failed {
		p.ramp = now
	}
	if to.Usable() && !p.state.Usable() {
		p.syns.SYNACK() // count anew
	}
	if to.KeepsSessions() {
		p.wasDown = false
	}
	p.state, p.since = to, now
}

// holdUntil returns when the hold-down ends if nothing fails any more; the zero
// time if it does not apply, or has not begun.
func (p *rport) holdUntil() time.Time {
	if !p.wasDown || p.conf.Check.HoldDown == 0 || p.goodSince.IsZero() {
		return time.Time{}
	}
	return p.goodSince.Add(p.conf.Check.HoldDown)
}

// PortStatus is a snapshot of a port of a [Roster]. It is a plain value.
type PortStatus struct {
	Server string         `json:"server"`         // its name
	Port   string         `json:"port"`           // its name
	Target netip.AddrPort `json:"target"`         // the server's address and the port; a check may ask elsewhere
	State  State          `json:"state"`          // as the checks have it
	Since  time.Time      `json:"since,omitzero"` // when State was entered; zero if it never changed
	// Usable: may be given new sessions. State alone is not enough: an
	// administrator or an agent may have taken the port out of service.
	Usable bool `json:"usable"`
	// KeepsSessions: may keep the sessions it has.
	KeepsSessions bool `json:"keepsSessions"`
	// Admin is what administrator and agent want.
	Admin Admin `json:"admin"`
	// By says what decides about the port: "its own check", "element web1".
	By string `json:"by"`
	// Err is why it is not up, as far as known.
	Err error `json:"-"`
	// HoldUntil is when the hold-down ends if nothing fails any more.
	HoldUntil time.Time `json:"holdUntil,omitzero"`
	// RampFrom is the start of the slow start: when the port, or its server, last
	// came back or was put back into service.
	RampFrom time.Time `json:"rampFrom,omitzero"`
	// Unanswered is the count of the passive check.
	Unanswered int `json:"unanswered,omitempty"`
}

func (p *rport) status() PortStatus {
	ramp := p.ramp
	if p.server.ramp.After(ramp) {
		ramp = p.server.ramp
	}
	return PortStatus{
		Server: p.server.conf.Name, Port: p.conf.name(), Target: p.target(),
		State: p.state, Since: p.since, Usable: p.usable,
		KeepsSessions: p.state.KeepsSessions() && p.was != OutOfService,
		Admin:         p.was, By: p.by.String(), Err: p.err,
		HoldUntil: p.holdUntil(), RampFrom: ramp, Unanswered: p.syns.Unanswered(),
	}
}

// ServerStatus is a snapshot of a server of a [Roster]. It is a plain value.
type ServerStatus struct {
	Server string     `json:"server"`         // its name
	Addr   netip.Addr `json:"addr"`           // where it is
	State  State      `json:"state"`          // as the echo checks have it
	Since  time.Time  `json:"since,omitzero"` // when State was entered; zero if it never changed
	// Admin is what administrator and agent want.
	Admin Admin `json:"admin"`
	// Agent is the sum of what the agent said: the last word of each kind. Nil if
	// it said nothing.
	Agent *AgentReport `json:"agent,omitempty"`
	// Err is that of the last failed echo, while it is the last; of a server that has not been up also
	// of one that could not be made.
	Err error `json:"-"`
	// RampFrom is the start of the server's slow start.
	RampFrom time.Time `json:"rampFrom,omitzero"`
}

func (s *rserver) status() ServerStatus {
	st := ServerStatus{
		Server: s.conf.Name, Addr: s.conf.Addr, State: s.state, Since: s.since,
		Admin: s.effective(), Err: s.err, RampFrom: s.ramp,
	}
	if s.told {
		a := s.agent
		st.Agent = &a
	}
	return st
}

// heard merges what the agent says into what it said before, and reports whether
// that changed anything.
func (s *rserver) heard(r AgentReport) bool {
	old := s.agent
	if r.HasWeight {
		s.agent.Weight, s.agent.HasWeight = r.Weight, true
	}
	if r.HasMaxConn {
		s.agent.MaxConn, s.agent.HasMaxConn = r.MaxConn, true
	}
	if r.Admin != AgentAdminKeep {
		s.agent.Admin = r.Admin
	}
	if r.Verdict != Inconclusive {
		s.agent.Verdict, s.agent.Reason = r.Verdict, r.Reason
	}
	first := !s.told
	s.told = true
	return first || old != s.agent
}
