package sslpersist

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// Every capture through a farm, where the server's address is the node and the metric says
// something else: a stream that shows an ID which was issued or resumed before goes where
// that was, and is the one that Wireshark says resumes by ID.
func TestCapturesThroughAFarm(t *testing.T) {
	byFile := map[string][]wantStream{}
	for _, w := range tcpRows(t) {
		byFile[w.File] = append(byFile[w.File], w)
	}
	followed := map[string]int{}
	for file, rows := range byFile {
		base := filepath.Base(file)
		if slices.Contains(hasPreamble, base) {
			continue
		}
		flows := reassemble(t, testenv.SharedFile(t, file))
		w := newWorld(t, nil)
		known := map[SessionID]string{}
		for _, row := range rows {
			if row.Client == nil || row.Server == nil || len(row.Clients) == 0 {
				continue
			}
			server, _, _ := strings.Cut(*row.Server, " ")
			client, _, _ := strings.Cut(*row.Client, " ")
			c := w.f.Open(netip.MustParseAddr(client))
			hello, err := c.Client(flows[*row.Client+" "+*row.Server])
			if err != nil {
				require.Equal(t, "pcpp_ssl-malformed1.pcap", base)
				continue
			}
			choice := c.Choose(w.now, w.available)
			if n, ok := known[hello.SessionID]; ok {
				require.Equal(t, Choice[string]{n, BySession}, choice, "%s stream %d", file, row.Stream)
				followed[base]++
			} else {
				require.Equal(t, ByMetric, choice.By)
			}
			c.Bind(w.now, server)
			reply, err := c.Server(w.now, flows[*row.Server+" "+*row.Client])
			if err == nil && !row.TLS13 && !reply.SessionID.IsZero() && (reply.SessionID != hello.SessionID || row.Clients[0].TicketLen == nil || *row.Clients[0].TicketLen == 0) {
				known[reply.SessionID] = server
			}
		}
		require.Equal(t, len(known), w.f.IDs().Len(), file)
		if base == "sv_ssl_version_negated.pcap" { // L68
			id := "ef3a04febc0723d4fe38d5a1e62c12677d2199588058ea8c4353bbaa5f1136a3"
			var want SessionID
			require.NoError(t, want.UnmarshalText([]byte(id)))
			require.Contains(t, known, want)
		}
	}
	require.Equal(t, 5, followed["sv_ssl_version_negated.pcap"])
	require.Equal(t, 2, followed["zeek_tls_ssl.v3.pcap"], "an ID changed by the server")
	t.Log(followed)
}
