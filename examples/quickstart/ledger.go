package main

import (
	"slices"
	"sync"
	"time"
)

// service is one of the three the balancer offers, on an IPv4 and an IPv6 virtual address.
type service uint8

const (
	web service = iota
	shop
	echo
	services
)

func (s service) String() string { return [...]string{"web", "shop", "echo"}[s] }

// request is one thing a client asked for, over a connection of its own unless it is of a stream.
type request struct {
	service    service
	v6         bool
	client     int // which of the client's addresses
	stream     int // number of the kept-open connection, counted from 1; 0: none
	start, end time.Time
	server     string // who answered
	err        error
}

// ledger is the memory of all that clients saw. What the story claims is verified from it.
type ledger struct {
	mu       sync.Mutex
	requests []request
}

func (l *ledger) add(r request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, r)
}

// all returns what has been recorded so far.
func (l *ledger) all() []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requests)
}

// span is a part of the story. Its zero end means that it goes on.
type span struct{ from, to time.Time }

// holds reports whether a request began within the span.
func (s span) holds(r request) bool {
	return !s.from.IsZero() && !r.start.Before(s.from) && (s.to.IsZero() || r.start.Before(s.to))
}

// covers reports whether a request began and ended within the span: only of such it is certain that its
// connection was made in it.
func (s span) covers(r request) bool {
	return s.holds(r) && (s.to.IsZero() || r.end.Before(s.to))
}

// touches reports whether a request was under way within the span.
func (s span) touches(r request) bool {
	return !s.from.IsZero() && !r.end.Before(s.from) && (s.to.IsZero() || r.start.Before(s.to))
}

// tally counts the requests by who answered.
func tally(requests []request, want func(request) bool) map[string]int {
	counts := map[string]int{}
	for _, r := range requests {
		if r.err == nil && want(r) {
			counts[r.server]++
		}
	}
	return counts
}
