package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/term"
)

// display shows the story while it goes on.
type display interface {
	// event says what has just happened.
	event(at time.Duration, text string)
	// frame shows how things stand; it is called several times a second, and at the end of each act.
	frame(f *frame)
	// close leaves the output ready for what follows.
	close()
}

// frame is how things stand at one moment.
type frame struct {
	Seconds float64 `json:"seconds"`
	Act     int     `json:"act"`
	Title   string  `json:"title"`
	// Waiting is what not all balancers know yet of what has failed or returned.
	Waiting   string        `json:"waiting,omitempty"`
	Over      bool          `json:"over,omitempty"` // the act has ended
	Balancers []balancerRow `json:"balancers"`
	Nodes     []counter     `json:"nodes"`
	Ways      []counter     `json:"waysOut"`
	Answered  uint64        `json:"answeredMeanwhile"`
	Longest   float64       `json:"longestWaitSeconds"`
}

// balancerRow is what a balancer did so far.
type balancerRow struct {
	Name       string `json:"name"`
	Link       string `json:"link"`
	State      string `json:"state"`
	Redirected uint64 `json:"redirected"`
	Bypassed   uint64 `json:"bypassed"`
	Relayed    uint64 `json:"relayed"`
	Denied     uint64 `json:"denied"`
	Learned    uint64 `json:"learned"`
}

// counter is what a node had, or what reached the servers by a way.
type counter struct {
	Name    string `json:"name"`
	Down    bool   `json:"down,omitempty"`
	Packets uint64 `json:"packets"`
}

// newDisplay draws on a terminal that is large enough, and else writes plain lines.
func newDisplay(w io.Writer, asJSON bool) display {
	if asJSON {
		return &jsonLines{enc: json.NewEncoder(w)}
	}
	if columns, rows, ok := term.Size(w); ok && columns >= 80 && rows > screenHeight {
		return &screen{on: term.Screen{W: w}}
	}
	return &lines{w: w}
}

// rates are how much counters grew in the last second.
type rates struct {
	last, now *frame
	past      []*frame
}

func (r *rates) next(f *frame) {
	r.now, r.past = f, append(r.past, f)
	for len(r.past) > 1 && r.past[1].Seconds <= f.Seconds-1 {
		r.past = r.past[1:]
	}
	r.last = r.past[0]
}

// of is the rate of what value takes from a frame.
func (r *rates) of(value func(f *frame) uint64) float64 {
	if r.now.Seconds <= r.last.Seconds {
		return 0
	}
	return float64(value(r.now)-value(r.last)) / (r.now.Seconds - r.last.Seconds)
}

// header is the head of the table of balancers, and row one of its lines.
const header = "     link cluster              redirected    bypassed    relayed denied learned"

func (r *rates) row(i int) string {
	b := &r.now.Balancers[i]
	rate := func(value func(b *balancerRow) uint64) float64 {
		return r.of(func(f *frame) uint64 { return value(&f.Balancers[i]) })
	}
	return fmt.Sprintf("%-4s %-4s %-19s %5d %3.0f/s %5d %3.0f/s %5d %2.0f/s %6d %7d", b.Name, b.Link, b.State,
		b.Redirected, rate(func(b *balancerRow) uint64 { return b.Redirected }),
		b.Bypassed, rate(func(b *balancerRow) uint64 { return b.Bypassed }),
		b.Relayed, rate(func(b *balancerRow) uint64 { return b.Relayed }), b.Denied, b.Learned)
}

// counters are nodes or ways in a line.
func (r *rates) counters(all func(f *frame) []counter) string {
	var parts []string
	for i, c := range all(r.now) {
		text := fmt.Sprintf("%s %d %.0f/s", c.Name, c.Packets, r.of(func(f *frame) uint64 { return all(f)[i].Packets }))
		if c.Down {
			text = fmt.Sprintf("%s down %d", c.Name, c.Packets)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func nodesOf(f *frame) []counter { return f.Nodes }
func waysOf(f *frame) []counter  { return f.Ways }

func (f *frame) meanwhile() string {
	return fmt.Sprintf("%d packets answered meanwhile, longest wait %.1fs", f.Answered, f.Longest)
}

// lines is for files and pipes: a line for each event, one a second, and a table at the end of each act.
type lines struct {
	w     io.Writer
	rates rates
	last  float64
}

func (l *lines) event(at time.Duration, text string) {
	fmt.Fprintf(l.w, "%5.1fs  %s\n", at.Seconds(), text)
}

func (l *lines) frame(f *frame) {
	switch {
	case f.Over:
		l.rates.next(f)
		fmt.Fprintf(l.w, "        %s\n", header)
		for i := range f.Balancers {
			fmt.Fprintf(l.w, "        %s\n", l.rates.row(i))
		}
		fmt.Fprintf(l.w, "        nodes: %s; out: %s\n        %s\n\n", l.rates.counters(nodesOf), l.rates.counters(waysOf), f.meanwhile())
	case f.Seconds-l.last >= 1:
		l.rates.next(f)
		sum := func(value func(b *balancerRow) uint64) string {
			all := func(f *frame) (n uint64) {
				for i := range f.Balancers {
					n += value(&f.Balancers[i])
				}
				return n
			}
			return fmt.Sprintf("%d (%.0f/s)", all(f), l.rates.of(all))
		}
		fmt.Fprintf(l.w, "%5.1fs    redirected %s, bypassed %s, relayed %s; out: %s\n", f.Seconds,
			sum(func(b *balancerRow) uint64 { return b.Redirected }), sum(func(b *balancerRow) uint64 { return b.Bypassed }),
			sum(func(b *balancerRow) uint64 { return b.Relayed }), l.rates.counters(waysOf))
	default:
		return
	}
	l.last = f.Seconds
}

func (l *lines) close() {}

const (
	latestEvents = 8
	screenHeight = 3 + balancers + 5 + latestEvents
)

// screen draws in place.
type screen struct {
	on     term.Screen
	events []string
	rates  rates
}

func (s *screen) event(at time.Duration, text string) {
	s.events = append(s.events, fmt.Sprintf("%5.1fs  %s", at.Seconds(), text))
	s.events = s.events[max(0, len(s.events)-latestEvents):]
	if s.rates.now != nil {
		s.on.Draw(s.text())
	}
}

func (s *screen) frame(f *frame) {
	s.rates.next(f)
	s.on.Draw(s.text())
}

// text is the screen's lines, always as many.
func (s *screen) text() (out []string) {
	f := s.rates.now
	waiting := ""
	if f.Waiting != "" {
		waiting = "waiting until all know: " + f.Waiting
	}
	out = append(out, fmt.Sprintf("%5.1fs  act %d of %d: %s", f.Seconds, f.Act, phases, f.Title), "        "+waiting, header)
	for i := range f.Balancers {
		out = append(out, s.rates.row(i))
	}
	out = append(out, "", "nodes: "+s.rates.counters(nodesOf), "out:   "+s.rates.counters(waysOf), f.meanwhile(), "")
	out = append(out, s.events...)
	return append(out, make([]string, latestEvents-len(s.events))...)
}

func (s *screen) close() {
	s.on.Close()
	s.rates = rates{}
}

// jsonLines writes an object a line.
type jsonLines struct {
	enc  *json.Encoder
	last float64 // state
	at   float64
}

type jsonLine struct {
	Seconds float64 `json:"seconds"`
	Event   string  `json:"event,omitempty"`
	State   *frame  `json:"state,omitempty"`
	Report  *report `json:"report,omitempty"`
}

func (j *jsonLines) event(at time.Duration, text string) {
	j.write(jsonLine{Seconds: at.Seconds(), Event: text})
}

func (j *jsonLines) frame(f *frame) {
	if f.Over || f.Seconds-j.last >= 1 {
		j.last = f.Seconds
		j.write(jsonLine{Seconds: f.Seconds, State: f})
	}
}

func (j *jsonLines) close() {}

func (j *jsonLines) report(r *report) { j.write(jsonLine{Seconds: j.at, Report: r}) }

func (j *jsonLines) write(l jsonLine) {
	j.at = l.Seconds
	_ = j.enc.Encode(l) // a reader that is gone is nobody's loss
}
