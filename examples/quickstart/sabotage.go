package main

import (
	"bytes"
	"net/http"
	"sync/atomic"
)

// break1 breaks a process as the test wants it.
func (s *story) break1(p *process) {
	switch {
	case s.lying && p.name == "web1":
		sound, n := p.handler, atomic.Int64{}
		p.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1)%50 == 0 {
				w = &liar{w}
			}
			sound.ServeHTTP(w, r)
		})
	case s.masked && p.name == "echo2":
		p.name = "echo1"
	}
}

type liar struct{ http.ResponseWriter }

func (l *liar) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	if len(b) > 0 {
		b[len(b)/2] ^= 1
	}
	return l.ResponseWriter.Write(b)
}
