package healthcheck

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lbprim/lbprim/internal/enum"
)

// AgentAdmin is the administrative state an agent asks for.
type AgentAdmin uint8

const (
	// AgentAdminKeep: the agent said nothing about it.
	AgentAdminKeep AgentAdmin = iota
	// AgentReady ends a drain or a maintenance the agent asked for.
	AgentReady
	// AgentDrain: sessions shutdown; existing clients only.
	AgentDrain
	// AgentMaint: disabled.
	AgentMaint
)

var agentAdminNames = enum.Of[AgentAdmin]("healthcheck: agentAdmin", "keep", "ready", "drain", "maint")

// String returns the name of a.
func (a AgentAdmin) String() string { return agentAdminNames.String(a) }

// AppendText implements [encoding.TextAppender].
func (a AgentAdmin) AppendText(b []byte) ([]byte, error) { return agentAdminNames.Append(b, a) }

// MarshalText implements [encoding.TextMarshaler].
func (a AgentAdmin) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *AgentAdmin) UnmarshalText(text []byte) error { return agentAdminNames.Parse(a, text) }

// AgentReport is what an agent on a server said of it, in HAProxy's agent check
// format. The zero AgentReport says nothing. It is a plain value.
type AgentReport struct {
	// Weight is the share of the configured weight in percent; meaningful if
	// HasWeight.
	Weight    int  `json:"weight,omitempty"`
	HasWeight bool `json:"hasWeight,omitempty"`
	// MaxConn is the session limit; meaningful if HasMaxConn.
	MaxConn    int        `json:"maxConn,omitempty"`
	HasMaxConn bool       `json:"hasMaxConn,omitempty"`
	Admin      AgentAdmin `json:"admin,omitempty"`
	// Verdict is Pass for "up", Fail for "down", "fail" and "stopped", and
	// Inconclusive where the agent said neither.
	Verdict Verdict `json:"verdict,omitempty"`
	// Reason is what the agent said after "#".
	Reason string `json:"reason,omitempty"`
}

// ErrAgentDown is wrapped by the error of a result made from a report that says
// down.
var ErrAgentDown = errors.New("agent says down")

// maxAgentNumber bounds what an agent may ask for. A weight of more than 100
// percent is legal.
const maxAgentNumber = 1 << 20

// ParseAgent parses the first line of what an agent sent. Words are separated by
// blanks or commas, their order and case mean nothing: "75%", "maxconn:30",
// "ready", "drain", "maint", "up", and "down", "fail", "failed" or "stopped",
// each of these optionally with "#" and a reason that reaches to the end of the
// line. Unknown words and a line without words are errors. Where words of one
// kind contradict each other, the last decides.
func ParseAgent(line string) (AgentReport, error) {
	var r AgentReport
	if i := strings.IndexAny(line, "\r\n"); i >= 0 {
		line = line[:i]
	}
	if i := strings.IndexByte(line, '#'); i >= 0 {
		r.Reason, line = strings.TrimSpace(line[i+1:]), line[:i]
	}
	words := strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' || c == ',' })
	if len(words) == 0 {
		return AgentReport{}, errors.New("healthcheck: agent sent no word, want one of 75%, maxconn:30, ready, drain, maint, up, down")
	}
	for _, w := range words {
		if err := r.word(strings.ToLower(w)); err != nil {
			return AgentReport{}, err
		}
	}
	return r, nil
}

func (r *AgentReport) word(w string) (err error) {
	switch w {
	case "ready":
		r.Admin = AgentReady
	case "drain":
		r.Admin = AgentDrain
	case "maint":
		r.Admin = AgentMaint
	case "up":
		r.Verdict = Pass
	case "down", "fail", "failed", "stopped":
		r.Verdict = Fail
	default:
		if n, ok := strings.CutSuffix(w, "%"); ok {
			r.HasWeight = true
			r.Weight, err = agentNumber(n)
		} else if n, ok := strings.CutPrefix(w, "maxconn:"); ok {
			r.HasMaxConn = true
			r.MaxConn, err = agentNumber(n)
		} else {
			err = errors.New("unknown word")
		}
		if err != nil {
			return fmt.Errorf("healthcheck: agent word %q: %w, want one of 75%%, maxconn:30, ready, drain, maint, up, down, fail, stopped", w, err)
		}
	}
	return nil
}

func agentNumber(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, errors.New("not a number")
	}
	if n > maxAgentNumber {
		return 0, fmt.Errorf("%d is more than %d", n, maxAgentNumber)
	}
	return int(n), nil
}

// Result returns the result of a probe that brought r: a failure if r says down,
// else a pass, since the agent lives. The weight and the administrative state are
// for the reader of [Result.Agent]; they raise nobody.
func (r AgentReport) Result() Result {
	res := Result{Verdict: Pass, Agent: &r}
	if r.Verdict == Fail {
		res.Verdict = Fail
		res.Err = ErrAgentDown
		if r.Reason != "" {
			res.Err = fmt.Errorf("%w: %s", ErrAgentDown, r.Reason)
		}
	}
	return res
}
