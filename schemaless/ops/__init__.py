"""Operations: long-running jobs and administration."""
