package main

import (
	"net/http"

	"github.com/lbprim/lbprim/dataplane"
)

func (in *instance) deleteSessions(_ http.ResponseWriter, r *http.Request) (any, error) {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		return nil, &requestError{http.StatusBadRequest, err}
	}
	if f == (filter{}) && r.URL.Query().Get("all") != "1" {
		return nil, badRequest("want a filter, or all=1 for all sessions")
	}
	return killReply{in.plane.KillSessions(func(s dataplane.Session) bool { return f.match(&s) })}, nil
}
