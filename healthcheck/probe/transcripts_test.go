package probe_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

// transcript is one captured conversation.
type transcript struct {
	File     string
	Proto    string
	Stream   int
	Server   int                  `json:"server_node"`
	First    string               `json:"server_first_line"`
	Verdict  *string              `json:"rule_verdict"`
	Segments [][2]json.RawMessage // node, base64
}

// said is what the server sent, segment by segment.
func (tr transcript) said(t *testing.T) (out []string) {
	for _, s := range tr.Segments {
		var node int
		var b []byte
		require.NoError(t, json.Unmarshal(s[0], &node))
		require.NoError(t, json.Unmarshal(s[1], &b))
		if node == tr.Server {
			out = append(out, string(b))
		}
	}
	return out
}

// up is the right verdict.
func (tr transcript) up() bool {
	if tr.Verdict != nil {
		return *tr.Verdict == "up"
	}
	switch tr.Proto {
	case "rtsp":
		return tr.First == "RTSP/1.0 200 OK"
	case "http-and-others":
		// The 100 of the one capture is followed by 200.
		return regexp.MustCompile(`^HTTP/\d\.\d (100|2\d\d|401) `).MatchString(tr.First)
	case "ldap": // a BindResponse to message 1 with result 0
		return tr.File == "l7/zeek_ldap_ldap-who-am-i.pcap" || tr.File == "l7/zeek_ldap_simpleauth.pcap"
	}
	return false
}

// TestTranscripts replays captured servers.
func TestTranscripts(t *testing.T) {
	n := 0
	for _, tr := range lines[transcript](t, "expected/l7_transcripts.jsonl") {
		proto := tr.Proto
		if proto == "http-and-others" {
			proto = "http"
		}
		if proto == "dns" {
			continue // see TestDNSMessages
		}
		n++
		t.Run(fmt.Sprintf("%s %d", tr.File, tr.Stream), func(t *testing.T) {
			said := tr.said(t)
			speaksFirst := proto != "http" && proto != "rtsp" && proto != "ldap"
			for _, pieces := range []int{0, 1} {
				synctest.Test(t, func(t *testing.T) {
					res := run(byName(proto)(memory{pieces: pieces, serve: func(p *peer) {
						for !speaksFirst && proto != "ldap" && p.hear() != "" {
						}
						if proto == "ldap" {
							p.take(14)
						}
						go p.drain()
						for _, s := range said {
							p.say(s)
						}
					}}))
					want := healthcheck.Fail
					if tr.up() {
						want = healthcheck.Pass
					}
					require.Equal(t, want, res.Verdict, "%q: %v", tr.First, res.Err)
				})
			}
		})
	}
	require.Greater(t, n, 50)
}

// TestBanners has greetings of many real products.
func TestBanners(t *testing.T) {
	type row struct {
		Proto  string
		Banner string `json:"banner_b64"`
		Prefix string `json:"prefix_removed_by_recog"`
	}
	n := 0
	for _, r := range lines[row](t, "l7/recog_banners.jsonl") {
		prober := byName(r.Proto)
		text, err := base64.StdEncoding.DecodeString(r.Banner)
		require.NoError(t, err)
		if r.Proto == "" || prober(memory{}) == nil || r.Proto == "telnet" || r.Proto == "http" || r.Proto == "ldap" || r.Proto == "rtsp" {
			continue
		}
		n++
		// Lines after the first would begin with "220-" in the original.
		greeting := r.Prefix + regexp.MustCompile(`\r?\n`).ReplaceAllString(string(text), " ") + "\r\n"
		synctest.Test(t, func(t *testing.T) {
			res := run(prober(memory{serve: greet(greeting)}))
			require.Equal(t, healthcheck.Pass, res.Verdict, "%s %q: %v", r.Proto, greeting, res.Err)
		})
	}
	require.Greater(t, n, 300)
}

// TestCurlReplies has odd replies of a test server: whatever they are, a greeting
// with another code than the wanted one is none, and nothing hangs.
func TestCurlReplies(t *testing.T) {
	type row struct{ Proto, On, Reply string }
	n := 0
	for _, r := range lines[row](t, "l7/curl_server_replies.jsonl") {
		proto := r.Proto
		if proto == "" || byName(proto)(memory{}) == nil || proto == "http" || proto == "ldap" || proto == "telnet" {
			continue
		}
		n++
		want := regexp.MustCompile(map[string]string{
			"ftp": `^220[ \r\n]`, "smtp": `^220[ \r\n]`, "nntp": `^20[01]`, "pop3": `^\+OK\b`,
			"imap": `(?i)^\* (OK|PREAUTH)\b`, "rtsp": `^RTSP/\d\.\d 2\d\d`,
		}[proto])
		synctest.Test(t, func(t *testing.T) {
			serve := greetAndClose(r.Reply + "\r\n")
			if proto == "rtsp" {
				serve = answerAndClose(r.Reply + "\r\n\r\n")
			}
			res := run(byName(proto)(memory{serve: serve}))
			if res.Verdict == healthcheck.Pass {
				require.Regexp(t, want, r.Reply+"\r\n")
			} else {
				require.Equal(t, healthcheck.Fail, res.Verdict, "%q", r.Reply)
			}
		})
	}
	require.Greater(t, n, 100)
}
