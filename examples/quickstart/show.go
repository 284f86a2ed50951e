package main

import (
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
	// frame shows how things stand; it is called several times a second.
	frame(f frame)
	// close leaves the output ready for what follows.
	close()
}

// frame is how things stand at one moment.
type frame struct {
	at, end time.Duration
	phase   string
	rows    []row
	packets float64 // a second
	tables  tables
	failed  int
}

// row is one server.
type row struct {
	Server      string  `json:"server"`
	Weight      int     `json:"weight"`
	Wanted      float64 `json:"wantedShare"` // by weight, of the sessions now
	Share       float64 `json:"share"`       // of the connections since the weights changed last
	Connections int     `json:"connections"`
	Failed      int     `json:"failed"`
	Open        int64   `json:"open"`
	State       string  `json:"state"`
	Transitions int     `json:"transitions"`
}

// tables are the sizes of the balancer's tables.
type tables struct {
	Sessions     int `json:"sessions"`
	Associations int `json:"associations"`
}

// newDisplay draws on a terminal that is large enough, and else writes plain lines.
func newDisplay(w io.Writer) display {
	if columns, rows, ok := term.Size(w); ok && columns >= 60 && rows > screenHeight {
		return &screen{w: w, on: term.Screen{W: w}}
	}
	return &lines{w: w}
}

// quiet shows nothing.
type quiet struct{}

func (quiet) event(time.Duration, string) {}
func (quiet) frame(frame)                 {}
func (quiet) close()                      {}

// lines is for files and pipes: a line per event, and one a second.
type lines struct {
	w    io.Writer
	last time.Duration
}

func (l *lines) event(at time.Duration, text string) {
	fmt.Fprintf(l.w, "%5.1fs  %s\n", at.Seconds(), text)
}

func (l *lines) frame(f frame) {
	if f.at-l.last < time.Second {
		return
	}
	l.last = f.at
	var shares []string
	for _, r := range f.rows {
		shares = append(shares, fmt.Sprintf("%s %.0f%%", r.Server, 100*r.Share))
	}
	fmt.Fprintf(l.w, "%5.1fs    %s; %.0f packets/s, %d sessions\n", f.at.Seconds(), strings.Join(shares, ", "), f.packets, f.tables.Sessions)
}

func (l *lines) close() {}

const (
	latestEvents = 6
	screenHeight = 7 + 5 + latestEvents // servers, what is around them, events
)

// screen draws in place, a few times a second, without touching what is above it.
type screen struct {
	w      io.Writer
	events []string
	on     term.Screen
	begun  bool
	now    frame
}

func (s *screen) event(at time.Duration, text string) {
	s.events = append(s.events, fmt.Sprintf("%5.1fs  %s", at.Seconds(), text))
	if len(s.events) > latestEvents {
		s.events = s.events[1:]
	}
	if s.begun {
		s.draw()
	}
}

func (s *screen) frame(f frame) {
	s.now, s.begun = f, true
	s.draw()
}

func (s *screen) draw() {
	columns, _, ok := term.Size(s.w)
	if !ok {
		columns = 80
	}
	s.on.Draw(s.text(columns))
}

// text is the screen's lines, always as many.
func (s *screen) text(columns int) (out []string) {
	f := s.now
	out = append(out, fmt.Sprintf("%4.1fs of %.0fs  %s  %s", f.at.Seconds(), f.end.Seconds(), term.Bar(f.at.Seconds()/f.end.Seconds(), 20), f.phase), "")
	out = append(out, "server    weight   share                         wanted   conns   open   health")
	for _, r := range f.rows {
		out = append(out, fmt.Sprintf("%-9s %6d  %5.1f%%  %s  %5.1f%%  %6d  %5d   %s", r.Server, r.Weight, 100*r.Share, term.Bar(r.Share, max(8, min(20, columns-60))), 100*r.Wanted, r.Connections, r.Open, r.State))
	}
	out = append(out, fmt.Sprintf("%.0f packets/s   %d sessions   %d associations   %d failed requests", f.packets, f.tables.Sessions, f.tables.Associations, f.failed), "")
	out = append(out, s.events...)
	for range latestEvents - len(s.events) {
		out = append(out, "")
	}
	return out
}

func (s *screen) close() {
	s.on.Close()
	s.begun, s.now = false, frame{}
}
