"""Published leaderboards, and in ``paper/`` the numbers that the NUQLS paper prints, as data."""
