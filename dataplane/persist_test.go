package dataplane

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

func TestRestartKeepsSessions(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		_, out := p.send(udp(ap(fam.client2, 7), vip, "x"))
		f, _ := parseFlow(out)
		var saved bytes.Buffer
		n, err := p.WriteTo(&saved)
		require.NoError(t, err)
		require.EqualValues(t, saved.Len(), n)

		q := newPlane(t, fam)
		q.now = time.Now()
		res, err := q.Restore(bytes.NewReader(saved.Bytes()))
		require.NoError(t, err)
		require.Equal(t, Restored{Sessions: 2, Associations: 2}, res)
		q.forwarded(tcp(client, vip, "A", 101, 501, "more"), client, node)
		q.forwarded(tcp(node, client, "A", 501, 105, "more"), vip, client)
		q.forwarded(udp(f.Dst, ap(fam.client2, 7), "y"), vip, ap(fam.client2, 7))
		require.Equal(t, node, q.open(ap(fam.client, 40001)), "the client is remembered, too")
		total := int64(0)
		for _, st := range q.pool.All() {
			total += st.Sessions
		}
		require.EqualValues(t, 3, total)
		// Again: they are there already.
		res, err = q.Restore(bytes.NewReader(saved.Bytes()))
		require.NoError(t, err)
		require.Equal(t, Restored{Refused: 4}, res)
		require.Equal(t, 3, q.Stats().Sessions)
		// TCP is followed on: a FIN from both sides ends it.
		q.send(tcp(client, vip, "FA", 105, 505, ""))
		q.send(tcp(node, client, "FA", 505, 106, ""))
		q.send(tcp(client, vip, "A", 106, 506, ""))

		// Nodes that are no more.
		r := newPlane(t, fam)
		require.NoError(t, r.SetNodes(r.pool, steering.Node{Name: "other", Addr: ap(fam.n3, 8080)}))
		res, err = r.Restore(bytes.NewReader(saved.Bytes()))
		require.NoError(t, err)
		require.Equal(t, Restored{Unknown: 4}, res)

		// Damage of any kind is refused, and changes nothing.
		s := newPlane(t, fam)
		for i := 0; i < saved.Len(); i += 1 + saved.Len()/200 {
			_, err := s.ReadFrom(bytes.NewReader(saved.Bytes()[:i]))
			require.ErrorIs(t, err, ErrSaved, "cut at %d", i)
			b := bytes.Clone(saved.Bytes())
			b[i] ^= 0x41
			_, err = s.ReadFrom(bytes.NewReader(b))
			require.ErrorIs(t, err, ErrSaved, "changed at %d", i)
		}
		require.Zero(t, s.Stats().Sessions)
	})
}
