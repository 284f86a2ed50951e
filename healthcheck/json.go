package healthcheck

import (
	"encoding/json"
	"time"
)

// The JSON views show errors as text, durations in milliseconds, and leave out
// what is zero.

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// MarshalJSON implements [json.Marshaler].
func (s Status) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		State         State        `json:"state"`
		Usable        bool         `json:"usable"`
		Since         time.Time    `json:"since,omitzero"`
		LastProbe     time.Time    `json:"lastProbe,omitzero"`
		NextProbe     time.Time    `json:"nextProbe,omitzero"`
		Verdict       Verdict      `json:"verdict"`
		Note          string       `json:"note,omitempty"`
		Err           string       `json:"err,omitempty"`
		Latency       float64      `json:"latencyMs,omitempty"`
		Streak        int          `json:"streak,omitempty"`
		StreakVerdict Verdict      `json:"streakVerdict,omitempty"`
		HoldUntil     time.Time    `json:"holdUntil,omitzero"`
		RampFrom      time.Time    `json:"rampFrom,omitzero"`
		NotAfter      time.Time    `json:"notAfter,omitzero"`
		Agent         *AgentReport `json:"agent,omitempty"`
		Probes        uint64       `json:"probes"`
		Failures      uint64       `json:"failures"`
	}{
		s.State, s.State.Usable(), s.Since, s.LastProbe, s.NextProbe, s.Verdict, s.Note, errText(s.Err), millis(s.Latency),
		s.Streak, s.StreakVerdict, s.HoldUntil, s.RampFrom, s.NotAfter, s.Agent, s.Probes, s.Failures,
	})
}

// MarshalJSON implements [json.Marshaler].
func (r Record) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		At      time.Time `json:"at"`
		Verdict Verdict   `json:"verdict"`
		Latency float64   `json:"latencyMs,omitempty"`
		Text    string    `json:"text,omitempty"`
	}{r.At, r.Verdict, millis(r.Latency), r.Text})
}

// MarshalJSON implements [json.Marshaler].
func (s PortStatus) MarshalJSON() ([]byte, error) {
	type plain PortStatus
	return json.Marshal(struct {
		plain
		Err string `json:"err,omitempty"`
	}{plain(s), errText(s.Err)})
}

// MarshalJSON implements [json.Marshaler].
func (s ServerStatus) MarshalJSON() ([]byte, error) {
	type plain ServerStatus
	return json.Marshal(struct {
		plain
		Err string `json:"err,omitempty"`
	}{plain(s), errText(s.Err)})
}
