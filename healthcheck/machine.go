package healthcheck

import "github.com/lbprim/lbprim/internal/enum"

// Event is what can happen to a server or a port. The zero Event, [NoEvent],
// changes nothing.
type Event uint8

const (
	NoEvent Event = iota // nothing happened

	// Bind and Unbind attach a port to a virtual port and detach it.
	Bind
	Unbind
	// ServerUp and ServerDown tell a port about its server.
	ServerUp
	ServerDown

	// PassOnce is a pass that is not enough, or not for long enough, to rise.
	PassOnce
	// Rise is the pass with which the target has passed often and long enough.
	Rise
	// RiseDraining is Rise of a target that is to be drained.
	RiseDraining
	// FailOnce is a failure that is not enough to fall.
	FailOnce
	// Fall is the failure that uses up the retries.
	Fall

	// Shutdown asks for a graceful shutdown, Enable takes it back.
	Shutdown
	Enable

	// Resolved and Unresolved tell that a server's link-layer address is known, or
	// no longer.
	Resolved
	Unresolved
	// Silence is that nothing came from a server for a while, though packets were
	// sent to it. Heard is that something came.
	Silence
	Heard

	numEvents = int(Heard) + 1
)

var eventNames = enum.Of[Event]("healthcheck: event", "none", "bind", "unbind", "server-up", "server-down", "pass", "rise", "rise-draining", "fail", "fall",
	"shutdown", "enable", "resolved", "unresolved", "silence", "heard")

// String returns the name of e.
func (e Event) String() string { return eventNames.String(e) }

// AppendText implements [encoding.TextAppender].
func (e Event) AppendText(b []byte) ([]byte, error) { return eventNames.Append(b, e) }

// MarshalText implements [encoding.TextMarshaler].
func (e Event) MarshalText() ([]byte, error) { return e.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (e *Event) UnmarshalText(text []byte) error { return eventNames.Parse(e, text) }

// Step is one row of a state table.
type Step struct {
	From State `json:"from"` // the state before
	On   Event `json:"on"`   // what happens
	To   State `json:"to"`   // the state after
}

// portSteps is the state table of a port, and of a check. What is not in it
// changes nothing.
var portSteps = []Step{
	{Unbound, Bind, Enabled},

	{Enabled, Unbind, Unbound},
	{Enabled, ServerUp, Testing},
	{Enabled, PassOnce, Testing},
	{Enabled, Rise, Active},
	{Enabled, RiseDraining, Graceful},
	{Enabled, FailOnce, Testing},
	{Enabled, Fall, Failed},

	{Testing, Unbind, Unbound},
	{Testing, ServerDown, Enabled},
	{Testing, Rise, Active},
	{Testing, RiseDraining, Graceful},
	{Testing, Fall, Failed},

	{Active, Unbind, Unbound},
	{Active, ServerDown, Failed},
	{Active, FailOnce, Suspect},
	{Active, Fall, Failed},
	{Active, Shutdown, Graceful},

	{Suspect, Unbind, Unbound},
	{Suspect, ServerDown, Failed},
	{Suspect, PassOnce, Active},
	{Suspect, Rise, Active},
	{Suspect, Fall, Failed},
	{Suspect, Shutdown, Graceful},

	{Failed, Unbind, Unbound},
	{Failed, Rise, Active},
	{Failed, RiseDraining, Graceful},

	{Graceful, Unbind, Unbound},
	{Graceful, ServerDown, Failed},
	{Graceful, Fall, Failed},
	{Graceful, Enable, Active},
}

// serverSteps is the state table of a server. Rise is an echo reply, FailOnce a lost
// one, Fall the last of the retries. Only an echo reply ends Failed: traffic does
// not revive a server whose active check fails. A server that resolves and never
// answers stays in Testing for ever.
var serverSteps = []Step{
	{Enabled, Resolved, Testing},
	{Enabled, PassOnce, Testing},
	{Enabled, Rise, Active},
	{Enabled, RiseDraining, Graceful},

	{Testing, Unresolved, Enabled},
	{Testing, Rise, Active},
	{Testing, RiseDraining, Graceful},

	{Active, Silence, Suspect},
	{Active, FailOnce, Suspect},
	{Active, Unresolved, Suspect},
	{Active, Fall, Failed},
	{Active, Shutdown, Graceful},

	{Suspect, Heard, Active},
	{Suspect, PassOnce, Active},
	{Suspect, Rise, Active},
	{Suspect, Fall, Failed},
	{Suspect, Shutdown, Graceful},

	{Failed, Rise, Active},
	{Failed, RiseDraining, Graceful},

	{Graceful, Fall, Failed},
	{Graceful, Enable, Active},
}

type stateTable [numStates][numEvents]State

func compileSteps(steps []Step) *stateTable {
	t := new(stateTable)
	for s := range t {
		for e := range t[s] {
			t[s][e] = State(s)
		}
	}
	for _, r := range steps {
		t[r.From][r.On] = r.To
	}
	return t
}

var (
	portTable   = compileSteps(portSteps)
	serverTable = compileSteps(serverSteps)
)

func (t *stateTable) next(s State, e Event) State {
	if int(s) >= numStates || int(e) >= numEvents {
		return s
	}
	return t[s][e]
}

// NextPort returns the state a port in state s goes to on e.
func NextPort(s State, e Event) State { return portTable.next(s, e) }

// NextServer returns the state a server in state s goes to on e.
func NextServer(s State, e Event) State { return serverTable.next(s, e) }

// PortSteps returns the state table of a port, without the events that change
// nothing. The slice is the caller's.
func PortSteps() []Step { return append([]Step(nil), portSteps...) }

// ServerSteps returns the state table of a server, likewise.
func ServerSteps() []Step { return append([]Step(nil), serverSteps...) }
