package healthcheck

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tables again, as a person reads them: one line per state, "event state" for
// all that changes something. Written independently of the code's tables.
const portDrawing = `
enabled:  unbind unbound, server-up testing, pass testing, rise active, rise-draining graceful, fail testing, fall failed
testing:  unbind unbound, server-down enabled, rise active, rise-draining graceful, fall failed
active:   unbind unbound, server-down failed, fail suspect, fall failed, shutdown graceful
suspect:  unbind unbound, server-down failed, pass active, rise active, fall failed, shutdown graceful
failed:   unbind unbound, rise active, rise-draining graceful
graceful: unbind unbound, server-down failed, fall failed, enable active
unbound:  bind enabled
`

const serverDrawing = `
enabled:  pass testing, rise active, rise-draining graceful, resolved testing
testing:  rise active, rise-draining graceful, unresolved enabled
active:   fail suspect, fall failed, shutdown graceful, unresolved suspect, silence suspect
suspect:  pass active, rise active, fall failed, shutdown graceful, heard active
failed:   rise active, rise-draining graceful
graceful: fall failed, enable active
unbound:
`

func draw(next func(State, Event) State) string {
	var b strings.Builder
	b.WriteByte('\n')
	for s := range numStates {
		var steps []string
		for e := range numEvents {
			if to := next(State(s), Event(e)); to != State(s) {
				steps = append(steps, Event(e).String()+" "+to.String())
			}
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-9s %s", State(s).String()+":", strings.Join(steps, ", ")), " ") + "\n")
	}
	return b.String()
}

func TestStateTables(t *testing.T) {
	t.Parallel()
	require.Equal(t, portDrawing, draw(NextPort))
	require.Equal(t, serverDrawing, draw(NextServer))
}

// The package documentation shows the same tables.
func TestStateTablesAreDocumented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for _, drawing := range []string{portDrawing, serverDrawing} {
		for line := range strings.Lines(strings.TrimSpace(drawing)) {
			require.Contains(t, string(doc), "//\t"+strings.TrimRight(line, "\n"))
		}
	}
}

func TestStateTableInvariants(t *testing.T) {
	t.Parallel()
	for s := range State(numStates) {
		require.Equal(t, s, NextPort(s, NoEvent))
		require.Equal(t, s, NextServer(s, NoEvent))
		require.Equal(t, Unbound, NextPort(s, Unbind), "unbinding works everywhere")
		for e := range Event(numEvents) {
			p, v := NextPort(s, e), NextServer(s, e)
			// Only a rise, or taking back a shutdown, makes usable what was not.
			if p.Usable() && !s.Usable() {
				require.Contains(t, []Event{Rise, Enable}, e, "port %v on %v", s, e)
			}
			if v.Usable() && !s.Usable() {
				require.Contains(t, []Event{Rise, Enable}, e, "server %v on %v", s, e)
			}
			// Nothing but the end of the retries, its server or its binding fails a port.
			if p == Failed && s != Failed {
				require.Contains(t, []Event{Fall, ServerDown}, e)
			}
			// A server that never answered is not failed, however long it is tested.
			if s == Testing {
				require.NotEqual(t, Failed, v)
			}
			// Traffic does not revive what the active check failed.
			if s == Failed && e == Heard {
				require.Equal(t, Failed, v)
			}
		}
	}
	require.Equal(t, State(99), NextPort(99, Rise))
	require.Equal(t, Active, NextServer(Active, 99))
	// The exported rows are the tables, and each changes something.
	for _, rows := range [][]Step{PortSteps(), ServerSteps()} {
		seen := map[[2]uint8]bool{}
		for _, r := range rows {
			require.NotEqual(t, r.From, r.To)
			require.False(t, seen[[2]uint8{uint8(r.From), uint8(r.On)}], "two rows for %v on %v", r.From, r.On)
			seen[[2]uint8{uint8(r.From), uint8(r.On)}] = true
		}
	}
	PortSteps()[0].To = Failed
	require.Equal(t, Enabled, NextPort(Unbound, Bind))
}
